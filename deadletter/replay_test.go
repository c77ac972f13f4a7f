package deadletter_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
)

func TestReplayMatchingPutsLettersBack(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		m := described()
		m.Payload = []byte{0, 255}
		b.publish("t", msg("earlier", ""))
		b.insertDead(m, msg("free", ""), msg("other", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id = 'free'`)
		chosen := deadletter.Filter{IDs: []int64{1, 2, 4711}}
		var progress []int
		report, err := b.letters.ReplayMatching(b.Context(), ann, chosen, deadletter.Plan{
			Progress: func(r deadletter.Report) { progress = append(progress, r.Replayed) },
		})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 2, Replayed: 2}, report)
		require.Equal(b, []int{2}, progress)
		require.Equal(b, 1, b.dead())
		require.Equal(b, []string{
			"ann | replay | dead:1 | described | the queue is back",
			"ann | replay | dead:2 | free | the queue is back",
		}, b.audits())
		require.Equal(b, 2, b.count(`SELECT COUNT(*) FROM once_outbox WHERE attempts = 0 AND due_at IS NULL AND position IN (2, 3)`))
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_outbox WHERE unknown AND message_id = 'free'`))

		// They are in the slots that the outbox would have chosen.
		b.publish("t", msg("free", ""), msg("same key", `it's "k"`))
		require.Equal(b, 2, b.count(`SELECT COUNT(DISTINCT slot) FROM once_outbox WHERE position > 1`))

		p := &publisher{}
		b.forward(p, 0, forwarder.SendSuccessors)
		var ids []string
		for _, m := range p.sent {
			ids = append(ids, m.UUID)
		}
		require.Equal(b, []string{"earlier", "described", "free", "free", "same key"}, ids)
		require.Equal(b, message.Payload{0, 255}, p.sent[1].Payload)
		require.Equal(b, m.Metadata, unstamped(p.sent[1]))
	})
}

// Trap 72.
func TestReplayNeedsForceWhenInboxesMayHaveForgotten(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("unknown, old", ""), msg("unknown, new", ""), msg("known, old", ""))
		b.exec(`UPDATE once_outbox_dead SET unknown = (1 = 1) WHERE message_id LIKE 'unknown%'`)
		b.age("once_outbox_dead", "died_at", 25*time.Hour, `message_id LIKE '%old'`)
		letters, _ := b.remembering(24 * time.Hour)
		report, err := letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 3, Replayed: 2, Skipped: []int64{1}}, report)
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_outbox WHERE message_id = 'unknown, old'`))
		require.Len(b, b.audits(), 2)

		err = letters.Replay(b.Context(), ann, 1)
		require.ErrorIs(b, err, deadletter.ErrNeedsForce)
		require.ErrorContains(b, err, "InboxRetention")
		report, err = letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{Force: true})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 1, Replayed: 1}, report)
		require.Equal(b, 3, b.pending())
	})
}

func TestReplayNeedsForceWhenTheOutboxWouldRefuse(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("malformed", ""), msg("invalid", ""), msg("exhausted", ""))
		b.exec(`UPDATE once_outbox_dead SET reason = message_id`)
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 3, Replayed: 1, Skipped: []int64{1, 2}}, report)
		require.ErrorIs(b, b.letters.Replay(b.Context(), ann, 1), deadletter.ErrNeedsForce)
		report, err = b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{Reason: "invalid"}, deadletter.Plan{Force: true})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 1, Replayed: 1}, report)
	})
}

// Trap 52.
func TestReplaysAtTheSameTime(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		const letters = 450
		b.insertDead(messages(letters)...)
		var (
			done    [3]deadletter.Report
			errs    [3]error
			working sync.WaitGroup
		)
		for i := range done {
			working.Go(func() {
				done[i], errs[i] = b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{})
			})
		}
		working.Wait()
		require.NoError(b, errors.Join(errs[:]...))
		require.Equal(b, letters, done[0].Replayed+done[1].Replayed+done[2].Replayed)
		require.Equal(b, letters, b.pending())
		require.Equal(b, letters, b.count(`SELECT COUNT(DISTINCT message_id) FROM once_outbox`))
		require.Len(b, b.audits(), letters)
		require.Zero(b, b.dead())
	})
}

func TestReplayMatchingStopsWhenItsContextEnds(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(messages(30)...)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		began := time.Now()
		report, err := b.letters.ReplayMatching(ctx, ann, everything, deadletter.Plan{
			Rate: 20, // 5 a batch
			Progress: func(r deadletter.Report) {
				if r.Replayed == 10 {
					cancel()
				}
			},
		})
		require.ErrorIs(b, err, context.Canceled)
		require.Equal(b, deadletter.Report{Total: 30, Replayed: 10}, report)
		require.GreaterOrEqual(b, time.Since(began), 240*time.Millisecond, "the rate was kept")
		require.Equal(b, 10, b.pending())
		require.Equal(b, 20, b.dead())
		require.Len(b, b.audits(), 10)

		report, err = b.letters.ReplayMatching(b.Context(), ann, deadletter.Filter{All: true, Limit: 3}, deadletter.Plan{})
		require.NoError(b, err)
		require.Equal(b, deadletter.Report{Total: 3, Replayed: 3}, report)
		require.Equal(b, 13, b.pending())
	})
}

// A message that becomes a dead letter again while the replay runs must not keep
// the replay running.
func TestReplayMatchingLeavesNewLettersAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", ""), msg("b", ""), msg("c", ""))
		report, err := b.letters.ReplayMatching(b.Context(), ann, everything, deadletter.Plan{
			Rate:     8, // 2 a batch
			Progress: func(deadletter.Report) { b.insertDead(msg("again", "")) },
		})
		require.NoError(b, err)
		require.Equal(b, 3, report.Replayed)
	})
}

func TestReplayPutsAllLettersBackOrNone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insertDead(msg("a", "key"), msg("b", ""), msg("c", ""))
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key', 1000, 1000, 'dead')`)
		err := b.letters.Replay(b.Context(), ann, 1, 4711)
		require.ErrorIs(b, err, deadletter.ErrNotFound)
		require.EqualError(b, err, "deadletter: replay: dead letter 4711: not found")
		require.Equal(b, 3, b.dead())
		require.Zero(b, b.pending())
		require.Empty(b, b.audits())

		require.NoError(b, b.letters.Replay(b.Context(), ann, 3, 1, 3), "in any order, and named twice")
		require.Equal(b, 1, b.dead())
		require.Equal(b, 2, b.pending())
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_blocked_keys AS b JOIN once_outbox AS o ON o.position = b.position
			WHERE b.reason = 'replayed' AND o.message_id = 'a'`))
		require.Equal(b, []string{
			"ann | replay | dead:1 | a | the queue is back", "ann | replay | dead:3 | c | the queue is back",
		}, b.audits())
		require.ErrorIs(b, b.letters.Replay(b.Context(), ann, 1), deadletter.ErrNotFound, "it was replayed")
	})
}
