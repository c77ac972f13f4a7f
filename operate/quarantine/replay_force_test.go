package quarantine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// A message that the consumer has handled is handled again only with Force.
func TestTrap72ReplayOfHandledMessagesNeedsForce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.fill("payments", 2)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: "payments"})
		kit.OK(t, err)
		c := &counted{}
		done := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, c.handle(msg) })
		kit.OK(t, kit.Err(done(message.NewMessage("payments-0000", []byte("body")))))
		ids := []int64{b.list()[0].ID}
		b.consume("payments", c.handle)
		for i, step := range []struct {
			force       bool
			total, runs int
		}{
			{false, 1, 1}, // skipped because of the inbox, and therefore resolved
			{false, 0, 1}, // no longer in quarantine
			{true, 1, 2},
		} {
			groups, err := b.store.DryRun(t.Context(), operate.Filter{IDs: ids}, operate.Plan{Force: step.force})
			if err != nil || len(groups) != step.total {
				t.Fatalf("step %d: %v, the dry run returns %+v", i, err, groups)
			}
			r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{IDs: ids}, operate.Plan{Force: step.force})
			if err != nil || r.Total != step.total || r.Resolved != r.Total || c.total() != step.runs {
				t.Fatalf("step %d: %v, %s, %d calls", i, err, counts(r.Report), c.total())
			}
		}
		// With another filter, Force does not replay resolved entries.
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{Force: true})
		if err != nil || r.Total != 1 || c.total() != 3 {
			t.Fatalf("%v, %s, %d calls", err, counts(r.Report), c.total())
		}
	})
}

func TestReplayKeepsRateAndLimit(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 12)
		b.consume("payments", (&counted{}).handle)
		began := time.Now()
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments", Limit: 11}, operate.Plan{Rate: 10})
		if err != nil || counts(r.Report) != "finished: 11 of 11 replayed, 11 resolved, 0 failed, 0 waiting" {
			t.Fatalf("%v, %s", err, counts(r.Report))
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("11 at 10 a second took %v", took)
		}
		if n := len(b.list()); n != 1 {
			t.Errorf("%d are left", n)
		}
		for field, plan := range map[string]operate.Plan{"Canary": {Canary: -1}, "Rate": {Rate: -1}, "Window": {Window: -1}} {
			if _, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{All: true}, plan); err == nil ||
				!strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}
