package observability

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/sequence"
)

// moveSequence causes every outcome of sequence.
func moveSequence(w *watch, seen *seen) {
	db := w.database()
	tx, err := db.BeginTx(w.Context(), nil)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	here := func(context.Context) (*sql.Tx, bool) { return tx, true }
	apply, quarantine := w.sequence(here, sequence.Config{AfterWindow: sequence.Apply}), w.sequence(here, sequence.Config{})
	nowhere := w.sequence(func(context.Context) (*sql.Tx, bool) { return nil, false }, sequence.Config{})
	merge := w.sequence(here, sequence.Config{
		OnStale: func(context.Context, *sql.Tx, sequence.Gap, *message.Message) error { return nil },
	})
	w.zero("once.sequence.")

	look := func(order *sequence.Resequencer, version string, waited time.Duration, result error) {
		msg := message.NewMessage("m", nil)
		outbox.SetAggregate(msg, "account", "17", 1)
		msg.Metadata.Set(outbox.AggregateVersion, version)
		msg.SetContext(parked.WithDelivery(w.Context(), &parked.Delivery{
			Consumer: "payments", Subscribed: true, Claim: &parked.Claim{Waited: waited},
		}))
		_, _ = order.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, result })(msg)
	}
	look(apply, "1", 0, nil)
	look(apply, "1", 0, nil)
	look(apply, "5", 0, nil)
	look(quarantine, "5", time.Hour, nil)
	look(apply, "5", time.Hour, nil)
	look(apply, "6", 0, errHandler)
	look(apply, "", 0, nil)
	look(apply, "first", 0, nil)
	look(nowhere, "9", 0, nil)
	look(merge, "2", 0, nil)
	for _, outcome := range []string{
		"applied", "stale", "held", "given_up", "merged", "applied_with_gap", "failed", "unversioned", "invalid", "undecided",
	} {
		if got := w.value("once.sequence.handled", "once.outcome="+outcome); got != 1 {
			w.Errorf("%v were %s, want 1", got, outcome)
		}
	}
	seen.look(w)
}

func (w *watch) sequence(tx func(context.Context) (*sql.Tx, bool), config sequence.Config) *sequence.Resequencer {
	w.Helper()
	config.Tx, config.Policy, config.MeterProvider = tx, sequence.HoldForGap, w.meters
	order, err := sequence.New(config)
	if err != nil {
		w.Fatal(err)
	}
	return order
}
