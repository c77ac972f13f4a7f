package quarantine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// fillGroup puts entries of a group into the quarantine. The first entry failed for the
// first time one second before the other entries did.
func (b *bench) fillGroup(fingerprint string, entries int) {
	b.Helper()
	first, last := fmt.Sprint(time.UnixMilli(1000).UnixMilli()), fmt.Sprint(time.UnixMilli(2000).UnixMilli())
	if b.Dialect != "sqlite" {
		first, last = `timestamptz '1970-01-01T00:00:01Z'`, `timestamptz '1970-01-01T00:00:02Z'`
	}
	b.Exec(fmt.Sprintf(`
		WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %[2]d)
		INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, fingerprint,
			first_failed_at, last_failed_at)
		SELECT 'c', 't' || (n %% 2), '%[1]s-' || n, '', '', 'quarantined', %[4]s, 'failed', '%[1]s',
		       CASE WHEN n = 1 THEN %[3]s ELSE %[4]s END, %[4]s
		FROM numbers`, fingerprint, entries, first, last))
}

// Groups counts a limited number of entries of each group, and sets More if there are
// more.
func TestGroupsAreCountedUpToABound(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fillGroup("f1", 2_000)
		b.fillGroup("f2", 10_002)
		say := func(f operate.Filter) (text string) {
			t.Helper()
			page, err := b.store.Groups(t.Context(), f)
			kit.OK(t, err)
			for _, g := range page.Groups {
				text += fmt.Sprintf("%s %d %t %v %d %d\n", g.Fingerprint, g.Count, g.More, g.Topics,
					g.FirstFailedAt.UnixMilli(), g.LastFailedAt.UnixMilli())
			}
			return text
		}
		same := func(f operate.Filter, want string) {
			t.Helper()
			if got := say(f); got != want {
				t.Errorf("the groups of %+v are\n%swant\n%s", f, got, want)
			}
		}
		const exactly, more = "f1 2000 false [t0 t1] 1000 2000\n", "f2 10000 true [t0 t1] 1000 2000\n"
		same(operate.Filter{}, exactly+"f2 2000 true [t0 t1] 1000 2000\n")
		same(operate.Filter{Limit: 1}, exactly)
		same(operate.Filter{AfterGroup: "f1"}, more)
		same(operate.Filter{Fingerprint: "f2"}, more)
		same(operate.Filter{Fingerprint: "f3"}, "")

		// With other conditions, Groups reads the latest 10,000 entries that match.
		same(operate.Filter{Fingerprint: "f2", Consumer: "c"}, "f2 10000 true [t0 t1] 2000 2000\n")
		same(operate.Filter{Consumer: "c"}, "f2 10000 true [t0 t1] 2000 2000\n")
		same(operate.Filter{Consumer: "c", AfterGroup: "f2"}, "")
		same(operate.Filter{Consumer: "other"}, "")
		same(operate.Filter{Topic: "t1"}, "f1 1000 false [t1] 1000 2000\nf2 5001 false [t1] 1000 2000\n")

		want := "f1 500 true [t0 t1] 1000 2000\nf2 500 true [t0 t1] 1000 2000\n"
		for n := 3; n <= 6; n++ {
			b.fillGroup(fmt.Sprint("f", n), n)
			want += fmt.Sprintf("f%d %d false [t0 t1] 1000 2000\n", n, n)
		}
		same(operate.Filter{}, want)
		if n, err := b.store.Count(t.Context(), operate.Filter{Fingerprint: "f2"}); err != nil || n.N != 10_002 {
			t.Errorf("%d entries, %v", n.N, err)
		}
	})
}

// A page after the group of the filter is empty, so a caller that reads page after page comes to an
// end. UntilID leaves out later entries of a group.
func TestGroupsKeepToAfterGroupAndUntilID(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fillGroup("f1", 2)
		b.fillGroup("f2", 2)
		for _, test := range []struct {
			filter operate.Filter
			want   string
		}{
			{operate.Filter{Fingerprint: "f2"}, "f2:2 "},
			{operate.Filter{Fingerprint: "f2", AfterGroup: "f1"}, "f2:2 "},
			{operate.Filter{Fingerprint: "f2", AfterGroup: "f2"}, ""},
			{operate.Filter{UntilID: 3}, "f1:2 f2:1 "},
			{operate.Filter{UntilID: 3, Fingerprint: "f2"}, "f2:1 "},
		} {
			page, err := b.store.Groups(t.Context(), test.filter)
			kit.OK(t, err)
			got := ""
			for _, g := range page.Groups {
				got += fmt.Sprintf("%s:%d ", g.Fingerprint, g.Count)
			}
			if got != test.want {
				t.Errorf("the groups of %+v are %q, want %q", test.filter, got, test.want)
			}
		}
	})
}
