package parked_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// Every statement that inserts into the table fills the columns by which a message can
// be found.
func TestEveryInsertStoresTheLabels(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		s, err := parked.NewStore(db.DB, config)
		if err != nil {
			t.Fatal(err)
		}
		labelled := func(id string) *message.Message {
			msg := message.NewMessage(id, []byte("body"))
			msg.Metadata = message.Metadata{
				"once_ordering_key": "k", "once_tenant_id": "acme", "once_aggregate_type": "it's \"one\"", "once_aggregate_id": id + "\x00",
				"once_event_type": strings.Repeat("ü", 200), "once_causation_id": "cause",
			}
			return msg
		}
		d := &parked.Delivery{Consumer: "c", Topic: "t"}
		failure := parked.Failure{Err: errors.New("no"), Reason: "exhausted", Attempts: 1}
		ways := map[string]func(msg *message.Message) error{
			"park":    func(msg *message.Message) error { return s.Park(t.Context(), d, msg, failure, time.Hour) },
			"deliver": func(msg *message.Message) error { return s.Deliver(t.Context(), "t", []string{"c"}, msg) },
			"in order": func(msg *message.Message) error {
				return s.DeliverTo(t.Context(), "t", []parked.Subscription{{Consumer: "c", KeyOrder: true}}, msg)
			},
			"quarantine": func(msg *message.Message) error {
				_, err := s.Quarantine(t.Context(), d, msg, failure, nil)
				return err
			},
			"early": func(msg *message.Message) error {
				return s.ParkEarly(t.Context(), d, msg, disposition.Turn{Sequence: "s", AggregateType: "a", AggregateID: "7", Version: 3}, time.Hour)
			},
		}
		for name, store := range ways {
			if err := store(labelled(name)); err != nil {
				t.Fatal(name, err)
			}
			bare := message.NewMessage("bare "+name, nil)
			if err := store(bare); err != nil {
				t.Fatal(name, err)
			}
		}
		for name := range ways {
			for id, want := range map[string]string{
				name:           "acme|it's \"one\"|" + name + "\uFFFD|" + strings.Repeat("ü", 127) + "|cause",
				"bare " + name: "||||",
			} {
				var got string
				err := db.QueryRowContext(t.Context(), `SELECT tenant || '|' || aggregate_type || '|' || aggregate_id || '|' || event_type || '|' ||
					causation_id FROM once_parked WHERE message_id = $1`, id).Scan(&got)
				if err != nil || got != want {
					t.Errorf("%s: %q, want %q: %v", id, got, want, err)
				}
			}
		}
	})
}
