package deadletter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
)

func TestGroupsByReasonAndError(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(5)...)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id IN ('1', '2')`)
		b.exec(`UPDATE once_outbox_dead SET reason = 'unacceptable', last_error = 'it''s: "ü"' WHERE message_id = '3'`)
		b.exec(`UPDATE once_outbox_dead SET reason = 'unacceptable' WHERE message_id = '4'`)
		b.age("once_outbox_dead", "died_at", time.Hour, `message_id = '1'`)
		groups, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		require.NoError(b, err)
		require.Len(b, groups, 3)
		first := groups[0]
		require.WithinDuration(b, time.Now().Add(-time.Hour), first.FirstFailedAt, time.Minute)
		require.WithinDuration(b, time.Now(), first.LastFailedAt, time.Minute)
		require.Equal(b, deadletter.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: first.FirstFailedAt, LastFailedAt: first.LastFailedAt,
		}, first)

		// The fingerprint finds the letters of a group, and nothing else.
		for _, g := range groups {
			letters, err := b.letters.List(b.Context(), deadletter.Filter{Fingerprint: g.Fingerprint})
			require.NoError(b, err)
			require.Len(b, letters, g.Count)
			for _, l := range letters {
				require.Equal(b, g.Reason, l.Reason)
				require.Equal(b, g.Error, l.Error)
				require.Contains(b, g.Topics, l.Topic)
			}
		}
		some, err := b.letters.Groups(b.Context(), deadletter.Filter{Topic: "s"})
		require.NoError(b, err)
		require.Len(b, some, 1)
		require.Equal(b, 2, some[0].Count)
		report, err := b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{Fingerprint: first.Fingerprint}, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, 3, report.Replayed)
	})
}

func TestGroupsReturnsPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		none, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		require.NoError(b, err)
		require.Empty(b, none)
		b.insertDead(messages(105)...)
		b.exec(`UPDATE once_outbox_dead SET last_error = message_id`)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = '0'`)
		b.insertDead(msg("another", ""))
		b.exec(`UPDATE once_outbox_dead SET last_error = '0' WHERE message_id = 'another'`)
		first, err := b.letters.Groups(b.Context(), deadletter.Filter{})
		require.NoError(b, err)
		require.Len(b, first, 100)
		require.Equal(b, []string{"s", "t"}, first[0].Topics, "a page ends between groups, not between topics")
		rest, err := b.letters.Groups(b.Context(), deadletter.Filter{AfterGroup: first[99].Fingerprint})
		require.NoError(b, err)
		require.Len(b, rest, 5)
		two, err := b.letters.Groups(b.Context(), deadletter.Filter{Limit: 2, AfterGroup: first[0].Fingerprint})
		require.NoError(b, err)
		require.Equal(b, first[1:3], two)
		seen := map[string]bool{}
		for _, g := range append(first, rest...) {
			seen[g.Error] = true
		}
		for i := range 105 {
			require.True(b, seen[fmt.Sprint(i)])
		}
	})
}

// Groups looks at the latest letters, and says that there are more.
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
			require.NoError(b, err)
			for _, g := range found {
				all = append(all, fmt.Sprint(g.Error, " ", g.Count, " ", g.More))
			}
			return all
		}
		fill(19_999)
		require.Equal(b, []string{"new 19999 false", "old 1 false"}, groups(deadletter.Filter{}))
		fill(1)
		require.Equal(b, []string{"new 20000 true"}, groups(deadletter.Filter{}))
		require.Empty(b, groups(deadletter.Filter{AfterGroup: "exhausted: new"}))
		require.Equal(b, []string{"new 20000 false", "old 1 false"}, groups(deadletter.Filter{Topic: "t"}))
	})
}
