package quarantine

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/operate"
)

// Claims eventually find every waiting row, in whatever way it began to wait, and no
// other row.
func TestTrap20ClaimsFindEveryWaitingRow(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		deliver(t, s, "released", "postponed", "abandoned", "quarantined", "replayed", "discarded", "done")
		sel := selection
		sel.Lease = time.Millisecond
		byID := map[string]*parkedrows.Claim{}
		for _, c := range claim(t, s, sel) {
			byID[c.Message.UUID] = c.Claim
		}
		act := operate.Act{Actor: "test", Why: "test"}
		failure := parkedrows.Failure{Err: errHandler}
		for _, err := range []error{
			s.parked.Release(t.Context(), byID["released"], 0),
			s.parked.Postpone(t.Context(), "c", byID["postponed"], failure, time.Millisecond),
			quarantineClaim(t.Context(), s, byID["quarantined"], failure),
			quarantineClaim(t.Context(), s, byID["replayed"], failure),
			quarantineClaim(t.Context(), s, byID["discarded"], failure),
			s.parked.Resolve(t.Context(), byID["done"]),
			s.replay(t.Context(), act, []int64{byID["replayed"].ID}),
			s.discard(t.Context(), act, []int64{byID["discarded"].ID}),
		} {
			kit.OK(t, err)
		}
		found := map[string]bool{}
		kit.Eventually(t, 30*time.Second, "all waiting rows are claimed", func() bool {
			for _, crashed := range []bool{false, true} {
				sel := selection
				sel.Crashed = crashed
				for _, c := range claim(t, s, sel) {
					found[c.Message.UUID] = true
				}
			}
			return len(found) >= 4
		})
		if len(found) != 4 || !found["released"] || !found["postponed"] || !found["abandoned"] || !found["replayed"] {
			t.Fatalf("found %v", found)
		}
	})
}

// The row of a replayed message is kept as the record of the outcome, and a late copy
// adds no row.
func TestReplayedRowIsKeptWhenResolved(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		deliver(t, s, "m1")
		c := claim(t, s, selection)[0]
		kit.OK(t, quarantineClaim(t.Context(), s, c.Claim, parkedrows.Failure{Err: errHandler, Reason: "exhausted"}))
		kit.OK(t, s.replay(t.Context(), operate.Act{Actor: "ann"}, []int64{c.ID}))
		kit.OK(t, s.parked.Resolve(t.Context(), claim(t, s, selection)[0].Claim))
		deliver(t, s, "m1")
		entries := rows.Parked(t, s.parked)
		if len(entries) != 1 || entries[0].State != parkedrows.Resolved || entries[0].PriorityClass != "replay" ||
			entries[0].Error != errHandler.Error() {
			t.Fatalf("rows %+v", entries)
		}
	})
}

// A claim that ends in quarantine is not counted as a crash.
func TestTrap48QuarantinedClaimIsNoCrash(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		deliver(t, s, "m1")
		quarantine := func(sel parkedrows.Select, crashes int) {
			t.Helper()
			c := claim(t, s, sel)[0]
			failure := parkedrows.Failure{Err: errHandler}
			kit.OK(t, quarantineClaim(t.Context(), s, c.Claim, failure))
			if e, err := s.get(t.Context(), c.ID); err != nil || e.Crashes != crashes {
				t.Fatalf("%v, %d crashes, want %d", err, e.Crashes, crashes)
			}
			kit.OK(t, s.replay(t.Context(), operate.Act{Actor: "test"}, []int64{c.ID}))
		}
		quarantine(selection, 0)
		short := selection
		short.Lease = 0
		claim(t, s, short) // the claim of a process that dies
		crashed := selection
		crashed.Crashed = true
		quarantine(crashed, 1)
	})
}
