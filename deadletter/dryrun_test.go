package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
)

func TestDryRunShowsWhatReplayMatchingDoes(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("old", ""), msg("a", "key"), msg("b", ""), msg("late", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'old'`)
		b.exec(`UPDATE once_outbox_dead SET topic = 's' WHERE message_id = 'b'`)
		b.exec(`UPDATE once_outbox_dead SET last_error = 'another' WHERE message_id = 'late'`)
		b.age("once_outbox_dead", "died_at", 8*24*time.Hour, `message_id = 'old'`)
		groups, err := b.letters.DryRun(b.Context(), everything, deadletter.Plan{})
		require.NoError(b, err)
		require.Len(b, groups, 2)
		require.Equal(b, "another", groups[0].Error)
		got := groups[1]
		require.WithinDuration(b, time.Now().Add(-8*24*time.Hour), got.FirstFailedAt, time.Minute)
		require.WithinDuration(b, time.Now(), got.LastFailedAt, time.Minute)
		require.Equal(b, deadletter.Group{
			Fingerprint: "exhausted: no queue", Count: 3, Topics: []string{"s", "t"}, Reason: "exhausted", Error: "no queue",
			FirstFailedAt: got.FirstFailedAt, LastFailedAt: got.LastFailedAt, Skipped: []int64{1},
		}, got)

		limited, err := b.letters.DryRun(b.Context(), deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{})
		require.NoError(b, err)
		require.Len(b, limited, 1)
		require.Equal(b, 2, limited[0].Count, "a letter that is skipped does not count against the Limit")
		forced, err := b.letters.DryRun(b.Context(), deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{Force: true})
		require.NoError(b, err)
		require.Equal(b, 1, forced[0].Count)
		require.Empty(b, forced[0].Skipped)
		none, err := b.letters.DryRun(b.Context(), deadletter.Filter{Topic: "no such topic"}, deadletter.Plan{})
		require.NoError(b, err)
		require.Empty(b, none)

		require.Equal(b, 4, b.dead(), "nothing changed")
		require.Zero(b, b.pending())
		require.Empty(b, b.audits())

		report, err := b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{All: true, Limit: 1}, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 1, Replayed: 1, Skipped: []int64{1}}, report)
	})
}

func TestDryRunOfTheSentLog(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.record("b", msg("1", ""), msg("2", ""))
		b.record("a", msg("3", ""))
		b.age("once_outbox_sent", "sent_at", 8*24*time.Hour, `message_id = '2'`)
		groups, err := b.log.DryRun(b.Context(), everything, deadletter.Plan{})
		require.NoError(b, err)
		require.Len(b, groups, 2)
		require.Equal(b, "a", groups[0].Topic)
		require.Empty(b, groups[0].Skipped)
		got := groups[1]
		require.WithinDuration(b, time.Now().Add(-8*24*time.Hour), got.FirstSentAt, time.Minute)
		require.WithinDuration(b, time.Now(), got.LastSentAt, time.Minute)
		require.Equal(b, deadletter.SentGroup{
			Topic: "b", Count: 2, FirstSentAt: got.FirstSentAt, LastSentAt: got.LastSentAt, Skipped: []int64{2},
		}, got)
		require.Zero(b, b.pending())
	})
}
