package forwarder_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// choosy is a broker that knows which messages it cannot take.
type choosy struct{ *broker }

func (c choosy) Check(topic string, msg *message.Message) error {
	if msg.Metadata["x-delay"] != "" {
		return errors.New(`metadata "x-delay" would control ` + topic)
	}
	return nil
}

// Trap 32. If the publisher cannot send a message unchanged, the message must become a
// dead letter that contains the reason. It must not be published without its metadata.
func TestMessageThatThePublisherCannotSendBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		b := newBroker()
		start(t, db, choosy{b}, quick(config))
		steering := msg("steering", "key")
		steering.Metadata["x-delay"] = "1000"
		put(t, db, config, "t", steering, msg("successor", "key"), msg("other", ""))
		drained(t, db)
		if !b.has("successor", "other") || b.tries("steering") != 0 {
			t.Errorf("stored %q; published the other %d times", b.ids(nil), b.tries("steering"))
		}
		var id, reason, last string
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT message_id, reason, last_error FROM once_outbox_dead`).Scan(&id, &reason, &last))
		const want = `forwarder: the publisher cannot send this message: metadata "x-delay" would control t`
		if id != "steering" || reason != "unacceptable" || last != want {
			t.Errorf("dead letter %s, %s, %s", id, reason, last)
		}
	})
}

// A forwarder does not use the inbox, so it also runs if the inbox has another layout
// than Config.Schema says.
func TestLayoutOfTheInboxDoesNotMatter(t *testing.T) {
	t.Parallel()
	plain, byDay := schema.Config{}, schema.Config{Inbox: schema.ByDay}
	for name, c := range map[string]struct{ tables, config schema.Config }{
		"plain inbox": {plain, byDay}, "inbox by day": {byDay, plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.Postgres(t).DB
			kit.OK(t, schema.Up(t.Context(), db, c.tables))
			if err := schema.Check(t.Context(), db, c.config); !errors.Is(err, schema.ErrLayout) {
				t.Fatalf("Check: got %v, want ErrLayout", err)
			}
			start(t, db, newBroker(), quick(c.config))
			put(t, db, c.config, "t", msg("m", ""))
			drained(t, db)
		})
	}
}
