package poison_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/verdict"
	"github.com/watermill-once/once/poison"
)

// Inside of dedup the message would be quarantined, and the transaction with
// what its handler had written committed: a replay would find it done.
func TestTrap38InsideOfDedupItIsRefused(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.config})
		if err != nil {
			t.Fatal(err)
		}
		for what, chain := range map[string]message.HandlerMiddleware{
			"dedup": inbox.Middleware, "dedup in batches": inbox.BatchMiddleware,
		} {
			msg := message.NewMessage("m1", nil)
			msg.SetContext(parked.WithDelivery(t.Context(), &parked.Delivery{Consumer: "payments", Topic: "orders.placed"}))
			_, err = chain(b.store.Middleware(failing(errHandler)))(msg)
			if !errors.Is(err, poison.ErrInsideDedup) || verdict.Of(err).Kind != verdict.Undecided {
				t.Errorf("inside of %s: %v", what, err)
			}
		}
		if entries := b.list(); len(entries) != 0 {
			t.Errorf("in quarantine: %v", entries)
		}
		if err := b.handle("payments", message.NewMessage("m1", nil), inbox.Middleware(failing(errHandler))); err != nil {
			t.Error(err)
		}
		if entries := b.list(); len(entries) != 1 {
			t.Errorf("in quarantine: %v", entries)
		}
	})
}
