package deadletter_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
)

func TestGroupsByReasonAndError(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(5)...)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id IN ('1', '2')`)
		b.exec(`UPDATE once_outbox_dead SET reason = 'unacceptable', last_error = 'it''s: "ü"' WHERE message_id = '3'`)
		b.exec(`UPDATE once_outbox_dead SET reason = 'unacceptable' WHERE message_id = '4'`)
		b.age("once_outbox_dead", "died_at", time.Hour, `message_id = '1'`)
		page, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		if len(page.Groups) != 3 {
			b.Fatalf("%d groups, want 3: %+v", len(page.Groups), page.Groups)
		}
		first := page.Groups[0]
		if first.FirstFailedAt.Sub(time.Now().Add(-time.Hour)).Abs() > time.Minute {
			b.Fatalf("first.FirstFailedAt is %v, want %v, give or take %v", first.FirstFailedAt, time.Now().Add(-time.Hour), time.Minute)
		}
		if time.Since(first.LastFailedAt).Abs() > time.Minute {
			b.Fatalf("first.LastFailedAt is %v, want %v, give or take %v", first.LastFailedAt, time.Now(), time.Minute)
		}
		want := deadletter.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: first.FirstFailedAt, LastFailedAt: first.LastFailedAt,
		}
		if !reflect.DeepEqual(first, want) {
			b.Fatalf("first is %+v, want %+v", first, want)
		}

		// The fingerprint finds exactly the letters of its group.
		for _, g := range page.Groups {
			page, err := b.letters.List(b.Context(), deadletter.Filter{Fingerprint: g.Fingerprint})
			if err != nil {
				b.Fatal(err)
			}
			if len(page.Letters) != g.Count {
				b.Fatalf("%d letters, want %d: %+v", len(page.Letters), g.Count, page.Letters)
			}
			for _, l := range page.Letters {
				if l.Reason != g.Reason {
					b.Fatalf("l.Reason is %q, want %q", l.Reason, g.Reason)
				}
				if l.Error != g.Error {
					b.Fatalf("l.Error is %q, want %q", l.Error, g.Error)
				}
				if !slices.Contains(g.Topics, l.Topic) {
					b.Fatalf("g.Topics are %q, without %q", g.Topics, l.Topic)
				}
			}
		}
		some, err := b.letters.Groups(b.Context(), deadletter.Filter{Topic: "s"})
		if err != nil {
			b.Fatal(err)
		}
		if len(some.Groups) != 1 {
			b.Fatalf("len(some) is %d, want 1: %+v", len(some.Groups), some.Groups)
		}
		if some.Groups[0].Count != 2 {
			b.Fatalf("some[0].Count is %d, want 2", some.Groups[0].Count)
		}
		report, err := b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{Fingerprint: first.Fingerprint}, deadletter.Plan{})
		if err != nil {
			b.Fatal(err)
		}
		if report.Replayed != 3 {
			b.Fatalf("report.Replayed is %d, want 3", report.Replayed)
		}
	})
}

func TestGroupsReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		none, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		if len(none.Groups) != 0 {
			b.Fatalf("none is %+v, want none", none.Groups)
		}
		b.insertDead(messages(105)...)
		b.exec(`UPDATE once_outbox_dead SET last_error = message_id`)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = '0'`)
		b.insertDead(msg("another", ""))
		b.exec(`UPDATE once_outbox_dead SET last_error = '0' WHERE message_id = 'another'`)
		first, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		if err != nil {
			b.Fatal(err)
		}
		if len(first.Groups) != 100 {
			b.Fatalf("len(first) is %d, want 100: %+v", len(first.Groups), first.Groups)
		}
		if want := []string{"s", "t"}; !slices.Equal(first.Groups[0].Topics, want) {
			b.Fatalf("first[0].Topics are %q, want %q: a page ends between groups, not between topics", first.Groups[0].Topics, want)
		}
		rest, err := b.letters.Groups(b.Context(), deadletter.Filter{AfterGroup: first.Groups[99].Fingerprint})
		if err != nil {
			b.Fatal(err)
		}
		if len(rest.Groups) != 5 {
			b.Fatalf("len(rest) is %d, want 5: %+v", len(rest.Groups), rest.Groups)
		}
		two, err := b.letters.Groups(b.Context(), deadletter.Filter{Limit: 2, AfterGroup: first.Groups[0].Fingerprint})
		if err != nil {
			b.Fatal(err)
		}
		if !reflect.DeepEqual(two.Groups, first.Groups[1:3]) {
			b.Fatalf("two is %+v, want %+v", two.Groups, first.Groups[1:3])
		}
		seen := map[string]bool{}
		for _, g := range append(first.Groups, rest.Groups...) {
			seen[g.Error] = true
		}
		for i := range 105 {
			if !seen[fmt.Sprint(i)] {
				b.Fatal("seen[fmt.Sprint(i)] is false")
			}
		}
	})
}

// Groups reads only the latest letters, and reports that there are more.
func TestGroupsLooksAtTheLatestLetters(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("oldest", ""))
		b.exec(`UPDATE once_outbox_dead SET last_error = 'old'`)
		fill := func(letters int) {
			b.exec(fmt.Sprintf(`
				WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d)
				INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown)
				SELECT n, 'm', 't', '', '{}', created_at, 20, 'new', 'exhausted', unknown FROM numbers, once_outbox_dead WHERE message_id = 'oldest'`,
				letters))
		}
		groups := func(f deadletter.Filter) (all []string) {
			found, err := b.letters.Groups(b.Context(), f)
			if err != nil {
				b.Fatal(err)
			}
			for _, g := range found.Groups {
				all = append(all, fmt.Sprint(g.Error, " ", g.Count, " ", g.More))
			}
			return all
		}
		fill(9_999)
		if got, want := groups(deadletter.Filter{}), []string{"new 9999 false", "old 1 false"}; !slices.Equal(got, want) {
			b.Fatalf("groups are %q, want %q", got, want)
		}
		fill(1)
		if got, want := groups(deadletter.Filter{}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups are %q, want %q", got, want)
		}
		if got := groups(deadletter.Filter{AfterGroup: "exhausted: new"}); len(got) != 0 {
			b.Fatalf("groups are %q, want none", got)
		}
		if got, want := groups(deadletter.Filter{Topic: "t"}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the topic are %q, want %q", got, want)
		}
		b.exec(`UPDATE once_outbox_dead SET tenant = 'acme'`)
		if got, want := groups(deadletter.Filter{Tenant: "acme"}), []string{"new 10000 true"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the tenant are %q, want %q", got, want)
		}
		if got, want := groups(deadletter.Filter{MessageID: "oldest"}), []string{"old 1 false"}; !slices.Equal(got, want) {
			b.Fatalf("groups of the message are %q, want %q", got, want)
		}
	})
}
