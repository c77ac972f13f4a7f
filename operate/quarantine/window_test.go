package quarantine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

// Together, all pages of a search contain each matching entry once, in the order of the
// IDs. The results of Count add up to the number of these entries.
func TestPagesOfEntriesAreComplete(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		entries := kit.Sized(25_000, 50_000)
		due, failed := `now()`, `to_timestamp(i)`
		if b.Dialect == "sqlite" {
			due, failed = `0`, `i * 1000`
		}
		b.Exec(`
			WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < ` + fmt.Sprint(entries) + `)
			INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason, tenant, event_type,
				last_failed_at)
			SELECT 'c', 't', 'm' || i, '', '', 'quarantined', ` + due + `, 'f', 'failed',
			       CASE WHEN i % 2 = 0 OR i % 9000 = 0 THEN 'even' ELSE 'other' END,
			       CASE WHEN i % 2 = 1 OR i % 9000 = 0 THEN 'odd' ELSE 'other' END, ` + failed + `
			FROM numbers`)
		half := time.Unix(int64(entries/2), 0)
		both := func(i int64) bool { return i%9_000 == 0 }
		for name, of := range map[string]struct {
			change func(f *operate.Filter)
			match  func(i int64) bool
		}{
			"two":      {func(*operate.Filter) {}, both},
			"three":    {func(f *operate.Filter) { f.Topic = "none" }, func(int64) bool { return false }},
			"after":    {func(f *operate.Filter) { f.FailedAfter = half }, func(i int64) bool { return i >= int64(entries/2) && both(i) }},
			"before":   {func(f *operate.Filter) { f.FailedBefore = half }, func(i int64) bool { return i < int64(entries/2) && both(i) }},
			"consumer": {func(f *operate.Filter) { f.Consumer = "c" }, both},
			"group":    {func(f *operate.Filter) { f.Fingerprint, f.Reason = "f", poison.ReasonFailed }, both},
		} {
			f := operate.Filter{Tenant: "even", EventType: "odd", Limit: 2}
			of.change(&f)
			var ids, want []int64
			for i := range int64(entries) {
				if of.match(i + 1) {
					want = append(want, i+1)
				}
			}
			for {
				page, err := b.store.List(b.Context(), f)
				kit.OK(b, err)
				for _, e := range page.Rows {
					ids = append(ids, e.ID)
				}
				if f.AfterID = page.Next; page.Next == 0 {
					break
				}
			}
			n := 0
			for f.Limit = 0; ; {
				part, err := b.store.Count(b.Context(), f)
				kit.OK(b, err)
				if n, f.AfterID = n+part.N, part.Next; part.Next == 0 {
					break
				}
			}
			if !slices.Equal(ids, want) || n != len(want) {
				b.Errorf("%s: the pages have the IDs %v, and %d are counted, want %v", name, ids, n, want)
			}
		}
	})
}
