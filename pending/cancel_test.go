package pending_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/pending"
)

func TestCancelMovesToTheDeadLetters(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.lease()
		require.NoError(b, b.messages.Cancel(b.Context(), ann, b.id("refused"), b.id("later"), b.id("third")))
		require.Equal(b, "due head second", b.left())
		dead := b.dead()
		require.Len(b, dead, 3)
		for id, want := range map[string]struct {
			error    string
			unknown  bool
			attempts int
		}{
			"refused": {"cancelled by ann: order 7 is void; last error: no queue", true, 3},
			"later":   {"cancelled by ann: order 7 is void", false, 0},
			"third":   {"cancelled by ann: order 7 is void", true, 0},
		} {
			letter := dead[id]
			require.Equal(b, deadletter.ReasonCancelled, letter.Reason)
			require.Equal(b, want.error, letter.Error, id)
			require.Equal(b, want.unknown, letter.Unknown, id)
			require.Equal(b, want.attempts, letter.Attempts, id)
			require.False(b, letter.BlocksKey)
		}
		require.Equal(b, []string{
			"ann | cancel | outbox:2 | refused | order 7 is void",
			"ann | cancel | outbox:3 | later | order 7 is void",
			"ann | cancel | outbox:6 | third | order 7 is void",
		}, b.audits())

		require.NoError(b, b.letters.Replay(b.Context(), ann, dead["later"].ID))
		require.Equal(b, "due head second later", b.left())
	})
}

// Trap 98. A forwarder may be sending a message that is due.
func TestCancelLeavesWhatAForwarderMayBeSending(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.lease()
		b.exec(`UPDATE once_outbox SET due_at = ` + b.in(2*time.Second) + ` WHERE message_id = 'refused'`) // due before a slow commit
		for _, id := range []string{"due", "refused"} {
			require.ErrorIs(b, b.messages.Cancel(b.Context(), ann, b.id("later"), b.id(id)), pending.ErrNeedsForce)
		}
		require.Equal(b, "due refused later head second third", b.left())

		all := pending.Filter{All: true}
		report, err := b.messages.DryRun(b.Context(), all, pending.Plan{})
		require.NoError(b, err)
		require.Equal(b, pending.Report{Changed: 4, Skipped: []int64{1, 2}}, report)
		require.Equal(b, "due refused later head second third", b.left())

		report, err = b.messages.CancelMatching(b.Context(), ann, all, pending.Plan{})
		require.NoError(b, err)
		require.Equal(b, pending.Report{Changed: 4, Skipped: []int64{1, 2}}, report)
		require.Equal(b, "due refused", b.left())
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_blocked_keys`))

		report, err = b.messages.CancelMatching(b.Context(), ann, all, pending.Plan{Force: true})
		require.NoError(b, err)
		require.Equal(b, pending.Report{Changed: 2}, report)
		require.True(b, b.dead()["due"].Unknown)
		require.True(b, b.dead()["refused"].Unknown)
	})
}

// Trap 98. Without a lease on its slot nobody sends a message, even if it is due.
func TestCancelTakesAllWithoutAForwarder(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_slots SET owner = 'dead', lease_until = ` + b.in(-time.Second))
		var seen []int
		report, err := b.messages.CancelMatching(b.Context(), ann, pending.Filter{All: true}, pending.Plan{
			Rate: 20, Progress: func(r pending.Report) { seen = append(seen, r.Changed) },
		})
		require.NoError(b, err)
		require.Equal(b, pending.Report{Changed: 6}, report)
		require.Equal(b, []int{5, 6}, seen)
		require.True(b, b.dead()["due"].Unknown)
		require.Empty(b, b.left())
	})
}

func TestRetryMakesMessagesDue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		report, err := b.messages.RetryMatching(b.Context(), ann, pending.Filter{All: true}, pending.Plan{})
		require.NoError(b, err)
		require.Equal(b, pending.Report{Changed: 2}, report) // what the producer delayed stays so
		page, err := b.messages.List(b.Context(), pending.Filter{State: pending.Due})
		require.NoError(b, err)
		require.Equal(b, "due refused head", ids(page.Messages))
		require.Equal(b, 3, page.Messages[1].Attempts)
		require.NoError(b, b.messages.Retry(b.Context(), ann, b.id("later")))
		require.Equal(b, []string{
			"ann | retry | outbox:2 | refused | order 7 is void",
			"ann | retry | outbox:4 | head | order 7 is void",
			"ann | retry | outbox:3 | later | order 7 is void",
		}, b.audits())

		p := &publisher{}
		b.forward(p, forwarder.Config{})
		testkit.Eventually(b.T, time.Minute, "all are sent, the key in its order", func() bool {
			return len(p.all()) == 6 && b.left() == ""
		})
	})
}

// The messages behind a cancelled head are sent by a forwarder that has read past
// them.
func TestCancelledHeadLetsItsKeyContinue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		p := &publisher{refused: "broken"}
		b.forward(p, forwarder.Config{Backoff: func(int) time.Duration { return time.Hour }})
		b.publish("broken", msg("head", "k"), msg("alone", ""))
		b.publish("fine", msg("second", "k"), msg("third", "k"))
		testkit.Eventually(b.T, time.Minute, "the head backs off", func() bool {
			n, err := b.messages.Count(b.Context(), pending.Filter{State: pending.BackingOff})
			require.NoError(b, err)
			return n.N == 2
		})
		require.Empty(b, p.all())
		require.NoError(b, b.messages.Cancel(b.Context(), ann, b.id("head"), b.id("second")))
		testkit.Eventually(b.T, time.Minute, "the rest of the key is sent", func() bool { return b.left() == "alone" })
		require.Equal(b, []string{"third"}, p.all())
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_blocked_keys`))
	})
}

// A call looks at a bounded number of rows, and Next says where the next call goes
// on. What an index finds is found in one call, however many rows there are.
func TestListsAreBounded(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		const rows = 100_000
		numbers := `generate_series(1, $1) AS s(n)`
		if b.sqlite() {
			numbers = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < $1) SELECT n FROM s) AS s`
		}
		b.exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, due_at, failing_since)
			SELECT 'm' || n, 't' || (n % 50), n % 64, '0123456789012345678901234567890123456789012345678901234567890123456789', '{}',
			       CASE WHEN n % 10000 = 0 THEN `+b.in(time.Hour)+` END, CASE WHEN n % 10000 = 0 THEN `+b.in(0)+` END
			FROM `+numbers, rows)
		for name, call := range map[string]func() error{
			"list": func() error {
				_, err := b.messages.List(b.Context(), pending.Filter{})
				return err
			},
			"an id that does not exist": func() error {
				page, err := b.messages.List(b.Context(), pending.Filter{MessageID: "none"})
				require.NotZero(b, page.Next)
				return err
			},
			"the last page of a topic": func() error {
				page, err := b.messages.List(b.Context(), pending.Filter{Topic: "t1", AfterID: rows - 1000})
				require.Equal(b, 1000/50, len(page.Messages)) //nolint:testifylint // Len prints all messages
				require.Zero(b, page.Next)
				return err
			},
			"few that back off": func() error {
				page, err := b.messages.List(b.Context(), pending.Filter{State: pending.BackingOff})
				require.Len(b, page.Messages, 10)
				require.Zero(b, page.Next)
				return err
			},
			"count": func() error {
				n, err := b.messages.Count(b.Context(), pending.Filter{Topic: "t1"})
				require.NotZero(b, n.Next)
				return err
			},
			"backlog": func() error {
				backlog, err := b.messages.Backlog(b.Context(), pending.Filter{})
				require.Len(b, backlog.Topics, 50)
				require.NotZero(b, backlog.Next)
				return err
			},
		} {
			began := time.Now()
			require.NoError(b, call(), name)
			b.Logf("%s: %v", name, time.Since(began))
		}
	})
}
