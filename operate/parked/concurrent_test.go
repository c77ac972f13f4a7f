package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

// Trap 99. If the lease of a message has not ended, an operator cannot change the
// message, and its consumer settles it.
func TestClaimedMessagesAreLeftAlone(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		for _, change := range []func(context.Context, operate.Act, ...int64) error{b.messages.RunNow, b.messages.Cancel, b.messages.Discard} {
			if err := change(b.Context(), ann, b.id("failed"), b.id("due")); !errors.Is(err, operate.ErrClaimed) {
				b.Fatalf("change: got %v, want ErrClaimed", err)
			}
		}
		all := operate.Filter{All: true}
		dry, err := b.messages.DryRun(b.Context(), parked.Cancel, all)
		kit.OK(b, err)
		var seen []operate.Report
		plan := operate.Plan{Rate: 1000, Progress: func(r operate.Report) { seen = append(seen, r) }}
		report, err := b.messages.CancelMatching(b.Context(), ann, all, plan)
		kit.OK(b, err)
		if want := (operate.Report{Changed: 4, Skipped: []int64{b.id("due")}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if !reflect.DeepEqual(dry, report) {
			b.Fatalf("dry is %+v, want %+v", dry, report)
		}
		if !reflect.DeepEqual(seen[len(seen)-1], report) {
			b.Fatalf("seen[len(seen)-1] is %+v, want %+v", seen[len(seen)-1], report)
		}
		kit.OK(b, b.store.Resolve(b.Context(), claims["due"].Claim))
	})
}

// Trap 99. The consumer has handled the message, and died before it removed the row.
// Cancel and Discard do not change such a message, and report it.
func TestHandledMessagesAreReported(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		if !b.handle(claims["due"].Message, claims["due"].Claim, nil) {
			b.Fatal("handle returned false")
		}
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Second) + ` WHERE message_id = 'due'`)
		for _, change := range []func(context.Context, operate.Act, ...int64) error{b.messages.Cancel, b.messages.Discard} {
			if err := change(b.Context(), ann, b.id("due")); !errors.Is(err, parked.ErrHandled) {
				b.Fatalf("change: got %v, want ErrHandled", err)
			}
		}
		only := operate.Filter{IDs: []int64{b.id("due")}}
		for _, change := range []func(context.Context, operate.Act, operate.Filter, operate.Plan) (operate.Report, error){
			b.messages.CancelMatching, b.messages.DiscardMatching,
		} {
			report, err := change(b.Context(), ann, only, operate.Plan{})
			kit.OK(b, err)
			if want := (operate.Report{Handled: []int64{b.id("due")}}); !reflect.DeepEqual(report, want) {
				b.Fatalf("report is %+v, want %+v", report, want)
			}
		}
		if got := b.states(only); got != "due:waiting" {
			b.Fatalf(`states(only) is %q, want "due:waiting"`, got)
		}

		if !b.handle(msg("failed", ""), nil, nil) { // a copy
			b.Fatal("handle returned false")
		}
		for _, change := range []func(context.Context, operate.Act, ...int64) error{b.messages.Cancel, b.messages.Discard} {
			if err := change(b.Context(), ann, b.id("failed")); !errors.Is(err, parked.ErrHandled) {
				b.Fatalf("change: got %v, want ErrHandled", err)
			}
		}
		dry, err := b.messages.DryRun(b.Context(), parked.Discard, operate.Filter{Consumer: consumer})
		kit.OK(b, err)
		if want := []int64{b.id("due"), b.id("failed")}; !slices.Equal(dry.Handled, want) {
			b.Fatalf("dry.Handled is %v, want %v", dry.Handled, want)
		}
	})
}

// Trap 99. The process froze before its handler began, and an operator cancels or
// discards the message. When the process continues, dedup must not call the handler.
func TestFrozenProcessDoesNotRunACancelledMessage(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(50 * time.Millisecond)
		claim := claims["due"].Claim
		kit.Eventually(b.T, time.Minute, "the lease ends", func() bool {
			return !claim.Leased() && b.Number(`SELECT COUNT(*) FROM once_parked WHERE message_id = 'due' AND due_at <= `+b.FromNow(0)) == 1
		})
		report, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{IDs: []int64{b.id("due")}}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 1, Abandoned: []int64{b.id("due")}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_inbox`)
		b.WantNumber(0, `SELECT COUNT(*) FROM once_parked WHERE token IS NOT NULL OR owner IS NOT NULL`)
		if b.handle(claims["due"].Message, claim, nil) {
			b.Fatal("handle returned true: a cancelled message ran")
		}
		if err := b.store.Resolve(b.Context(), claim); !errors.Is(err, store.ErrClaimLost) {
			b.Fatalf("Resolve: got %v, want ErrClaimLost", err)
		}
		if got, want := b.states(operate.Filter{State: parked.Quarantined}), "due:quarantined poison:quarantined"; got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
	})
}

// The inbox does not contain messages without an id. So a message without an id can be
// cancelled although its process may be frozen in its handler.
func TestAbandonedMessageWithoutAnIDIsCancelled(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		kit.OK(b, b.store.Deliver(b.Context(), topic, []string{consumer}, msg("", "")))
		b.Exec(`UPDATE once_parked SET token = 'x', owner = 'y', crashes = 1, due_at = ` + b.FromNow(-time.Minute))
		report, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{All: true}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 1, Abandoned: []int64{b.id("")}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_inbox`)
	})
}

// Trap 99. The process is frozen in its handler, whose transaction is open and has
// inserted the id of the message into the inbox. So Cancel and Discard do not change
// the message.
func TestOpenTransactionOfAHandlerIsNotCancelled(t *testing.T) {
	b := newBench(t, kit.Postgres(t)) // SQLite has one writer: the operator waits for the handler
	b.seed()
	claims := b.claim(time.Hour)
	other := operate.Filter{IDs: []int64{b.id("due"), b.id("failed")}}
	b.handle(claims["due"].Message, claims["due"].Claim, func() {
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Second) + ` WHERE message_id = 'due'`)
		if err := b.messages.Cancel(b.Context(), ann, b.id("due")); !errors.Is(err, operate.ErrClaimed) {
			b.Fatalf("Cancel: got %v, want ErrClaimed", err)
		}
		if err := b.messages.Discard(b.Context(), ann, b.id("due")); !errors.Is(err, operate.ErrClaimed) {
			b.Fatalf("Discard: got %v, want ErrClaimed", err)
		}
		report, err := b.messages.CancelMatching(b.Context(), ann, other, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 1, Skipped: []int64{b.id("due")}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
	})
	if err := b.messages.Cancel(b.Context(), ann, b.id("due")); !errors.Is(err, parked.ErrHandled) {
		b.Fatalf("Cancel: got %v, want ErrHandled", err)
	}
}

// If the handler of a message of the batch is running, each message is changed alone. An
// error of another message is returned then, too.
func TestErrorBesideARunningMessageIsReturned(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.seed()
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON once_parked FOR EACH ROW
		WHEN (OLD.message_id = 'failed') EXECUTE FUNCTION refuse()`)
	claims := b.claim(time.Hour)
	other := operate.Filter{IDs: []int64{b.id("due"), b.id("failed")}}
	b.handle(claims["due"].Message, claims["due"].Claim, func() {
		b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(-time.Second) + ` WHERE message_id = 'due'`)
		_, err := b.messages.CancelMatching(b.Context(), ann, other, operate.Plan{})
		if err == nil || !strings.Contains(err.Error(), "refused") {
			b.Fatalf("got %v, want the error of the trigger", err)
		}
	})
}

// A row that another transaction has locked is skipped without waiting.
func TestLockedMessagesAreSkipped(t *testing.T) {
	b := newBench(t, kit.Postgres(t))
	b.seed()
	tx, err := b.BeginTx(b.Context(), &sql.TxOptions{})
	kit.OK(b, err)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(b, tx, `SELECT FROM once_parked WHERE message_id = 'failed' FOR UPDATE`)
	for _, ids := range [][]int64{{b.id("failed")}, {b.id("failed"), b.id("head")}, {b.id("due"), b.id("failed")}} {
		if err := b.messages.Discard(b.Context(), ann, ids...); !errors.Is(err, operate.ErrClaimed) {
			b.Fatalf("Discard of %d: got %v, want ErrClaimed", ids, err)
		}
	}
	report, err := b.messages.DiscardMatching(b.Context(), ann, operate.Filter{All: true}, operate.Plan{})
	kit.OK(b, err)
	if want := (operate.Report{Changed: 4, Skipped: []int64{b.id("failed")}}); !reflect.DeepEqual(report, want) {
		b.Fatalf("report is %+v, want %+v", report, want)
	}
	if got := b.Number(`SELECT COUNT(*) FROM once_inbox WHERE message_id = 'failed'`); got != 0 { // its handler must run
		b.Fatal("the inbox contains a message that was skipped")
	}
}
