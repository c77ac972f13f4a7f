package parked_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/poison"
)

func TestRunNowMakesMessagesDue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		require.Contains(b, claims, "due")
		dry, err := b.messages.DryRun(b.Context(), parked.RunNow, parked.Filter{All: true})
		require.NoError(b, err)
		report, err := b.messages.RunNowMatching(b.Context(), ann, parked.Filter{All: true}, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, parked.Report{Changed: 2, Skipped: []int64{b.id("due")}}, report) // the lease of a claimed message stays
		require.Equal(b, report, dry)
		require.Equal(b, 1, b.count(`SELECT COUNT(*) FROM once_parked WHERE message_id = 'due' AND due_at > `+b.in(time.Minute)))
		claimed := b.claim(time.Hour)
		require.Len(b, claimed, 2)
		require.Equal(b, 3, claimed["failed"].Attempts)
		require.Contains(b, claimed, "head")
		require.Equal(b, []string{
			"ann | run | parked:2 | payments | failed | order 7 is void",
			"ann | run | parked:3 | payments | head | order 7 is void",
		}, b.audits())

		require.ErrorIs(b, b.messages.RunNow(b.Context(), ann, b.id("due")), parked.ErrClaimed)
		require.ErrorIs(b, b.messages.RunNow(b.Context(), ann, b.id("second")), parked.ErrHeld)
		require.ErrorIs(b, b.messages.RunNow(b.Context(), ann, b.id("poison")), parked.ErrEnded)
		require.NoError(b, b.store.Postpone(b.Context(), consumer, claimed["failed"].Claim, store.Failure{}, time.Hour))
		require.NoError(b, b.messages.RunNow(b.Context(), parked.Act{Actor: "bob"}, b.id("failed")))
		require.Contains(b, b.claim(time.Hour), "failed")
	})
}

func TestCancelMovesIntoQuarantine(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		require.NoError(b, b.messages.Cancel(b.Context(), ann, b.id("failed"), b.id("due")))
		require.Equal(b, "due:quarantined failed:quarantined poison:quarantined", b.states(parked.Filter{State: parked.Quarantined}))
		entry, err := b.quarantine.Get(b.Context(), b.id("failed"))
		require.NoError(b, err)
		require.Equal(b, poison.ReasonCancelled, entry.Reason)
		require.Equal(b, "cancelled by ann: order 7 is void; last error: no answer", entry.Error)
		require.Equal(b, 3, entry.Attempts)
		groups, err := b.quarantine.Groups(b.Context(), poison.Filter{Reason: poison.ReasonCancelled})
		require.NoError(b, err)
		require.Len(b, groups, 1)
		require.Equal(b, 2, groups[0].Count)
		require.Equal(b, []string{
			"ann | cancel | parked:1 | payments | due | order 7 is void",
			"ann | cancel | parked:2 | payments | failed | order 7 is void",
		}, b.audits())
		require.Empty(b, b.claim(time.Hour))
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_inbox`))

		require.NoError(b, b.quarantine.Replay(b.Context(), poison.Act{Actor: "ann"}, b.id("failed")))
		require.Contains(b, b.claim(time.Hour), "failed")
	})
}

// The raw form of a message must not reach a handler after a replay.
func TestCancelledUndecodableMessageStaysUndecodable(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.exec(`UPDATE once_parked SET reason = 'undecodable' WHERE message_id = 'due'`)
		require.NoError(b, b.messages.Cancel(b.Context(), ann, b.id("due")))
		require.ErrorIs(b, b.quarantine.Replay(b.Context(), poison.Act{Actor: "ann"}, b.id("due")), poison.ErrUndecodable)
	})
}

// The message behind the head becomes the head in the same transaction, also if it is
// cancelled together with the head, and a held message leaves without a change of the
// head.
func TestOrderOfKeysContinues(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for name, end := range map[string]func(ids ...int64) error{
			"cancel":  func(ids ...int64) error { return b.messages.Cancel(b.Context(), ann, ids...) },
			"discard": func(ids ...int64) error { return b.messages.Discard(b.Context(), ann, ids...) },
			"cancel matching": func(ids ...int64) error {
				_, err := b.messages.CancelMatching(b.Context(), ann, parked.Filter{IDs: ids}, parked.Plan{})
				return err
			},
		} {
			b.exec(`DELETE FROM once_parked`)
			b.exec(`DELETE FROM once_inbox`)
			b.seed()
			key := parked.Filter{OrderingKey: "k", State: parked.Waiting}
			require.NoError(b, end(b.id("second")))
			require.Equal(b, "head:waiting", b.states(key), name)
			require.Equal(b, "third:held", b.states(parked.Filter{State: parked.Held}), name)
			require.NoError(b, end(b.id("head")))
			require.Equal(b, "third:waiting", b.states(key), name)
			require.Contains(b, b.claim(time.Hour), "third", name)

			b.exec(`DELETE FROM once_parked`)
			b.exec(`DELETE FROM once_inbox`)
			b.seed()
			require.NoError(b, end(b.id("head"), b.id("second")))
			require.Equal(b, "third:waiting", b.states(key), name)
		}
	})
}

// The inbox counts a discarded message as handled.
func TestDiscardedMessageDoesNotRun(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		report, err := b.messages.DiscardMatching(b.Context(), ann, parked.Filter{Consumer: consumer, State: parked.Waiting}, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, parked.Report{Changed: 3}, report)
		require.Equal(b, "due:discarded failed:discarded head:discarded gone:discarded", b.states(parked.Filter{State: parked.Discarded}))
		require.False(b, b.handle(msg("failed", ""), nil, nil), "a late copy ran")
		require.True(b, b.handle(msg("second", ""), nil, nil))
		require.Len(b, b.audits(), 3)
		one, err := b.messages.Get(b.Context(), b.id("failed"))
		require.NoError(b, err)
		require.False(b, one.FinishedAt.IsZero())
	})
}

// Trap 99. A message whose lease lasts is left alone, and its consumer settles it.
func TestClaimedMessagesAreLeftAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		for _, change := range []func(context.Context, parked.Act, ...int64) error{b.messages.RunNow, b.messages.Cancel, b.messages.Discard} {
			require.ErrorIs(b, change(b.Context(), ann, b.id("failed"), b.id("due")), parked.ErrClaimed)
		}
		all := parked.Filter{All: true}
		dry, err := b.messages.DryRun(b.Context(), parked.Cancel, all)
		require.NoError(b, err)
		var seen []parked.Report
		plan := parked.Plan{Rate: 1000, Progress: func(r parked.Report) { seen = append(seen, r) }}
		report, err := b.messages.CancelMatching(b.Context(), ann, all, plan)
		require.NoError(b, err)
		require.Equal(b, parked.Report{Changed: 4, Skipped: []int64{b.id("due")}}, report)
		require.Equal(b, report, dry)
		require.Equal(b, report, seen[len(seen)-1])
		require.NoError(b, b.store.Resolve(b.Context(), claims["due"].Claim))
	})
}

// Trap 99. The consumer has handled the message, and died before it removed the row.
func TestHandledMessagesAreReported(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		require.True(b, b.handle(claims["due"].Message, claims["due"].Claim, nil))
		b.exec(`UPDATE once_parked SET due_at = ` + b.in(-time.Second) + ` WHERE message_id = 'due'`)
		for _, change := range []func(context.Context, parked.Act, ...int64) error{b.messages.Cancel, b.messages.Discard} {
			require.ErrorIs(b, change(b.Context(), ann, b.id("due")), parked.ErrHandled)
		}
		only := parked.Filter{IDs: []int64{b.id("due")}}
		for _, change := range []func(context.Context, parked.Act, parked.Filter, parked.Plan) (parked.Report, error){
			b.messages.CancelMatching, b.messages.DiscardMatching,
		} {
			report, err := change(b.Context(), ann, only, parked.Plan{})
			require.NoError(b, err)
			require.Equal(b, parked.Report{Handled: []int64{b.id("due")}}, report)
		}
		require.Equal(b, "due:waiting", b.states(only))

		require.True(b, b.handle(msg("failed", ""), nil, nil)) // a copy
		for _, change := range []func(context.Context, parked.Act, ...int64) error{b.messages.Cancel, b.messages.Discard} {
			require.ErrorIs(b, change(b.Context(), ann, b.id("failed")), parked.ErrHandled)
		}
		dry, err := b.messages.DryRun(b.Context(), parked.Discard, parked.Filter{Consumer: consumer})
		require.NoError(b, err)
		require.Equal(b, []int64{b.id("due"), b.id("failed")}, dry.Handled)
	})
}

// Trap 99. The process froze before its handler began, and the operator ends the message.
func TestFrozenProcessDoesNotRunACancelledMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(50 * time.Millisecond)
		claim := claims["due"].Claim
		testkit.Eventually(b.T, time.Minute, "the lease ends", func() bool {
			return !claim.Leased() && b.count(`SELECT COUNT(*) FROM once_parked WHERE message_id = 'due' AND due_at <= `+b.in(0)) == 1
		})
		report, err := b.messages.CancelMatching(b.Context(), ann, parked.Filter{IDs: []int64{b.id("due")}}, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, parked.Report{Changed: 1, Abandoned: []int64{b.id("due")}}, report)
		require.Zero(b, b.count(`SELECT COUNT(*) FROM once_inbox`))
		require.False(b, b.handle(claims["due"].Message, claim, nil), "a cancelled message ran")
		require.ErrorIs(b, b.store.Resolve(b.Context(), claim), store.ErrClaimLost)
		require.Equal(b, "due:quarantined poison:quarantined", b.states(parked.Filter{State: parked.Quarantined}))
	})
}

// Trap 99. The process is frozen in its handler, whose transaction is open. The inbox tells.
func TestOpenTransactionOfAHandlerIsNotCancelled(t *testing.T) {
	b := newBench(t, testkit.Postgres(t)) // SQLite has one writer: the operator waits for the handler
	b.seed()
	claims := b.claim(time.Hour)
	other := parked.Filter{IDs: []int64{b.id("due"), b.id("failed")}}
	b.handle(claims["due"].Message, claims["due"].Claim, func() {
		b.exec(`UPDATE once_parked SET due_at = ` + b.in(-time.Second) + ` WHERE message_id = 'due'`)
		require.ErrorIs(b, b.messages.Cancel(b.Context(), ann, b.id("due")), parked.ErrClaimed)
		require.ErrorIs(b, b.messages.Discard(b.Context(), ann, b.id("due")), parked.ErrClaimed)
		report, err := b.messages.CancelMatching(b.Context(), ann, other, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, parked.Report{Changed: 1, Skipped: []int64{b.id("due")}}, report)
	})
	require.ErrorIs(b, b.messages.Cancel(b.Context(), ann, b.id("due")), parked.ErrHandled)
}

// A row that another transaction has locked is skipped, without a wait.
func TestLockedMessagesAreSkipped(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	b.seed()
	tx, err := b.db.BeginTx(b.Context(), &sql.TxOptions{})
	require.NoError(b, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(b.Context(), `SELECT FROM once_parked WHERE message_id = 'failed' FOR UPDATE`)
	require.NoError(b, err)
	require.ErrorIs(b, b.messages.Discard(b.Context(), ann, b.id("failed")), parked.ErrClaimed)
	report, err := b.messages.DiscardMatching(b.Context(), ann, parked.Filter{All: true}, parked.Plan{})
	require.NoError(b, err)
	require.Equal(b, parked.Report{Changed: 4, Skipped: []int64{b.id("failed")}}, report)
}

func TestLimitBoundsAChange(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(250, "busy")
		some := parked.Filter{Consumer: "busy", Limit: 120}
		report, err := b.messages.CancelMatching(b.Context(), ann, some, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, 120, report.Changed)
		report, err = b.messages.CancelMatching(b.Context(), ann, parked.Filter{Consumer: "busy"}, parked.Plan{})
		require.NoError(b, err)
		require.Equal(b, 130, report.Changed)
		require.Equal(b, 250, b.count(`SELECT COUNT(*) FROM once_audit`))
	})
}
