package observability

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/verdict"
	"github.com/watermill-once/once/poison"
)

func (w *watch) quarantine(db *sql.DB, config poison.Config) *poison.Store {
	w.Helper()
	config.MeterProvider, config.Logger = w.meters, &w.logs
	store, err := poison.New(db, config)
	if err != nil {
		w.Fatal(err)
	}
	return store
}

// fail has a consumer fail a message for a reason.
func (w *watch) fail(store *poison.Store, consumer, id, reason string, claim *parked.Claim) {
	w.Helper()
	msg := message.NewMessage(id, []byte("body"))
	msg.SetContext(parked.WithDelivery(w.Context(), &parked.Delivery{Consumer: consumer, Topic: "t", Claim: claim}))
	_, err := store.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, verdict.Forever(reason, errors.New("no"))
	})(msg)
	if err != nil {
		w.Fatal(err)
	}
}

// movePoison quarantines for every reason, and does everything that can be done
// to an entry.
func movePoison(w *watch, seen *seen) {
	db := w.database()
	store := w.quarantine(db, poison.Config{})
	w.zero("once.poison.")
	act := poison.Act{Actor: "ann", Why: "test"}
	for _, reason := range []string{
		poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed,
		poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable,
	} {
		w.fail(store, "payments", reason, reason, nil)
	}
	w.reaches(7, "once.poison.entries", "")
	entries, err := store.List(w.Context(), poison.Filter{})
	if err != nil {
		w.Fatal(err)
	}
	if err := store.Discard(w.Context(), act, entries[0].ID); err != nil {
		w.Fatal(err)
	}
	if err := store.Replay(w.Context(), act, entries[1].ID); err != nil {
		w.Fatal(err)
	}
	w.fail(store, "payments", entries[1].MessageID, entries[1].Reason, nil)
	change := func(*message.Message) error { return nil }
	if _, err := store.Edit(w.Context(), act, entries[2].ID, change, poison.EditOptions{}); err != nil {
		w.Fatal(err)
	}
	for name, want := range map[string]float64{"discarded": 1, "replayed": 1, "failed_again": 1, "edited": 1} {
		if got := w.value("once.poison."+name, ""); got != want {
			w.Errorf("%v %s, want %v", got, name, want)
		}
	}
	if got := w.value("once.poison.quarantined", "once.reason="+entries[1].Reason); got != 2 {
		w.Errorf("%v quarantined, want 2", got)
	}
	seen.look(w)
	w.exec(db, `ALTER TABLE once_parked RENAME TO elsewhere`)
	w.eventually("entries are not known", func() bool { return w.value("once.poison.entries", "") == -1 })
}

// Consumers that are configured are told apart, all others are one.
func TestConsumersThatAreConfiguredAreToldApart(t *testing.T) {
	w := newWatch(t)
	store := w.quarantine(w.database(), poison.Config{Consumers: []string{"payments", "inventory", "payments"}})
	for _, consumer := range []string{"payments", "payments", "inventory", "a", "b", "other"} {
		w.fail(store, consumer, "", poison.ReasonFailed, nil)
	}
	for consumer, want := range map[string]float64{"payments": 2, "inventory": 1, "other": 3} {
		if got := w.value("once.poison.quarantined", "once.consumer="+consumer+" once.reason=failed"); got != want {
			w.Errorf("%v of %s, want %v", got, consumer, want)
		}
	}
	if n := len(w.instruments()["once.poison.quarantined"].series); n != 3*7 {
		t.Errorf("%d series", n)
	}
}
