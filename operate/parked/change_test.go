package parked_test

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

func TestRunNowMakesMessagesDue(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		claims := b.claim(time.Hour)
		if _, ok := claims["due"]; !ok {
			b.Fatalf(`claims has no "due": %+v`, claims)
		}
		dry, err := b.messages.DryRun(b.Context(), parked.RunNow, operate.Filter{All: true})
		kit.OK(b, err)
		report, err := b.messages.RunNowMatching(b.Context(), ann, operate.Filter{All: true}, operate.Plan{})
		kit.OK(b, err)
		// the lease of a claimed message keeps its end
		if want := (operate.Report{Changed: 2, Skipped: []int64{b.id("due")}}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if !reflect.DeepEqual(dry, report) {
			b.Fatalf("dry is %+v, want %+v", dry, report)
		}
		b.WantNumber(1, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'due' AND due_at > `+b.FromNow(time.Minute))
		claimed := b.claim(time.Hour)
		if len(claimed) != 2 {
			b.Fatalf("len(claimed) is %d, want 2: %+v", len(claimed), claimed)
		}
		if claimed["failed"].Attempts != 3 {
			b.Fatalf(`claimed["failed"].Attempts is %d, want 3`, claimed["failed"].Attempts)
		}
		if _, ok := claimed["head"]; !ok {
			b.Fatalf(`claimed has no "head": %+v`, claimed)
		}
		want := []string{
			"ann | run | parked:2 | payments | failed | order 7 is void",
			"ann | run | parked:3 | payments | head | order 7 is void",
		}
		if got := b.Audits(); !slices.Equal(got, want) {
			b.Fatalf("audits are %q, want %q", got, want)
		}

		if err := b.messages.RunNow(b.Context(), ann, b.id("due")); !errors.Is(err, operate.ErrClaimed) {
			b.Fatalf("RunNow: got %v, want ErrClaimed", err)
		}
		if err := b.messages.RunNow(b.Context(), ann, b.id("second")); !errors.Is(err, parked.ErrHeld) {
			b.Fatalf("RunNow: got %v, want ErrHeld", err)
		}
		if err := b.messages.RunNow(b.Context(), ann, b.id("poison")); !errors.Is(err, parked.ErrEnded) {
			b.Fatalf("RunNow: got %v, want ErrEnded", err)
		}
		kit.OK(b, b.store.Postpone(b.Context(), consumer, claimed["failed"].Claim, store.Failure{}, time.Hour))
		kit.OK(b, b.messages.RunNow(b.Context(), operate.Act{Actor: "bob"}, b.id("failed")))
		if _, ok := b.claim(time.Hour)["failed"]; !ok {
			b.Fatal(`claim(time.Hour) has no "failed"`)
		}
	})
}

func TestCancelMovesIntoQuarantine(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET stack = 'of an earlier panic' WHERE message_id = 'failed'`)
		kit.OK(b, b.messages.Cancel(b.Context(), ann, b.id("failed"), b.id("due")))
		want := "due:quarantined failed:quarantined poison:quarantined"
		if got := b.states(operate.Filter{State: parked.Quarantined}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		entry, err := b.quarantine.Get(b.Context(), b.id("failed"))
		kit.OK(b, err)
		if entry.Reason != poison.ReasonCancelled {
			b.Fatalf("entry.Reason is %q, want %q", entry.Reason, poison.ReasonCancelled)
		}
		if want := "cancelled by ann: order 7 is void; last error: no answer"; entry.Error != want {
			b.Fatalf("entry.Error is %q, want %q", entry.Error, want)
		}
		if entry.Stack != "" { // cancelling is no panic
			b.Fatalf("entry.Stack is %q, want none", entry.Stack)
		}
		if entry.Attempts != 3 {
			b.Fatalf("entry.Attempts is %d, want 3", entry.Attempts)
		}
		if first, last := time.Since(entry.FirstFailedAt), time.Since(entry.LastFailedAt); first < time.Hour || last > 30*time.Second {
			b.Fatalf("it failed first %v ago and last %v ago, want an hour and now", first, last)
		}
		page, err := b.quarantine.Groups(b.Context(), operate.Filter{Reason: poison.ReasonCancelled})
		kit.OK(b, err)
		if len(page.Groups) != 1 {
			b.Fatalf("%d groups, want 1: %+v", len(page.Groups), page.Groups)
		}
		if page.Groups[0].Count != 2 {
			b.Fatalf("groups[0].Count is %d, want 2", page.Groups[0].Count)
		}
		wantAudits := []string{
			"ann | cancel | parked:1 | payments | due | order 7 is void",
			"ann | cancel | parked:2 | payments | failed | order 7 is void",
		}
		if got := b.Audits(); !slices.Equal(got, wantAudits) {
			b.Fatalf("audits are %q, want %q", got, wantAudits)
		}
		if got := b.claim(time.Hour); len(got) != 0 {
			b.Fatalf("claim(time.Hour) is %+v, want none", got)
		}
		b.WantNumber(0, `SELECT COUNT(*) FROM once_inbox`)

		kit.OK(b, b.quarantine.Replay(b.Context(), operate.Act{Actor: "ann"}, b.id("failed")))
		if _, ok := b.claim(time.Hour)["failed"]; !ok {
			b.Fatal(`claim(time.Hour) has no "failed"`)
		}
	})
}

// A message that its transport could not decode is stored in its raw form. This form
// must not reach a handler, even if the message is cancelled and then replayed.
func TestCancelledUndecodableMessageStaysUndecodable(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		b.Exec(`UPDATE once_parked SET reason = 'undecodable' WHERE message_id = 'due'`)
		kit.OK(b, b.messages.Cancel(b.Context(), ann, b.id("due")))
		if err := b.quarantine.Replay(b.Context(), operate.Act{Actor: "ann"}, b.id("due")); !errors.Is(err, quarantine.ErrUndecodable) {
			b.Fatalf("Replay: got %v, want ErrUndecodable", err)
		}
	})
}

// When a head is cancelled, the message behind it becomes the head in the same
// transaction. If both are cancelled together, the message behind them becomes the
// head. Cancelling a held message does not change the head.
func TestOrderOfKeysContinues(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for name, end := range map[string]func(ids ...int64) error{
			"cancel":  func(ids ...int64) error { return b.messages.Cancel(b.Context(), ann, ids...) },
			"discard": func(ids ...int64) error { return b.messages.Discard(b.Context(), ann, ids...) },
			"cancel matching": func(ids ...int64) error {
				_, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{IDs: ids}, operate.Plan{})
				return err
			},
		} {
			b.Exec(`DELETE FROM once_parked`)
			b.Exec(`DELETE FROM once_inbox`)
			b.seed()
			key := operate.Filter{OrderingKey: "k", State: parked.Waiting}
			kit.OK(b, end(b.id("second")))
			if got := b.states(key); got != "head:waiting" {
				b.Fatalf(`%s: states(key) is %q, want "head:waiting"`, name, got)
			}
			if got := b.states(operate.Filter{State: parked.Held}); got != "third:held" {
				b.Fatalf(`%s: states is %q, want "third:held"`, name, got)
			}
			kit.OK(b, end(b.id("head")))
			if got := b.states(key); got != "third:waiting" {
				b.Fatalf(`%s: states(key) is %q, want "third:waiting"`, name, got)
			}
			if _, ok := b.claim(time.Hour)["third"]; !ok {
				b.Fatalf(`%s: claim(time.Hour) has no "third"`, name)
			}

			b.Exec(`DELETE FROM once_parked`)
			b.Exec(`DELETE FROM once_inbox`)
			b.seed()
			kit.OK(b, end(b.id("head"), b.id("second")))
			if got := b.states(key); got != "third:waiting" {
				b.Fatalf(`%s: states(key) is %q, want "third:waiting"`, name, got)
			}
		}
	})
}

// The inbox counts a discarded message as handled.
func TestDiscardedMessageDoesNotRun(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.seed()
		report, err := b.messages.DiscardMatching(b.Context(), ann, operate.Filter{Consumer: consumer, State: parked.Waiting}, operate.Plan{})
		kit.OK(b, err)
		if want := (operate.Report{Changed: 3}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		want := "due:discarded failed:discarded head:discarded gone:discarded"
		if got := b.states(operate.Filter{State: parked.Discarded}); got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
		if b.handle(msg("failed", ""), nil, nil) {
			b.Fatal("handle returned true: a late copy ran")
		}
		if !b.handle(msg("second", ""), nil, nil) {
			b.Fatal("handle returned false")
		}
		if got := b.Audits(); len(got) != 3 {
			b.Fatalf("%d audits, want 3: %q", len(got), got)
		}
		one, err := b.messages.Get(b.Context(), b.id("failed"))
		kit.OK(b, err)
		if one.FinishedAt.IsZero() {
			b.Fatal("one.FinishedAt is zero")
		}
	})
}

func TestLimitBoundsAChange(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(250, "busy")
		some := operate.Filter{Consumer: "busy", Limit: 120}
		var progress []int
		plan := operate.Plan{Progress: func(r operate.Report) { progress = append(progress, r.Changed) }}
		report, err := b.messages.CancelMatching(b.Context(), ann, some, plan)
		kit.OK(b, err)
		if report.Changed != 120 {
			b.Fatalf("report.Changed is %d, want 120", report.Changed)
		}
		if want := []int{100, 120}; !slices.Equal(progress, want) { // batches are small, because other transactions wait for their locks
			b.Fatalf("progress is %v, want %v", progress, want)
		}
		report, err = b.messages.CancelMatching(b.Context(), ann, operate.Filter{Consumer: "busy"}, operate.Plan{})
		kit.OK(b, err)
		if report.Changed != 130 {
			b.Fatalf("report.Changed is %d, want 130", report.Changed)
		}
		b.WantNumber(250, `SELECT COUNT(*) FROM once_audit`)
	})
}

// A call changes only messages that existed when it began.
func TestMessagesThatArriveDuringAChangeStay(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.fill(150, "busy") // two batches
		late := operate.Plan{Progress: func(r operate.Report) {
			kit.OK(b, b.store.Deliver(b.Context(), "busy topic", []string{"busy"}, msg(fmt.Sprint("late ", r.Changed), "")))
		}}
		report, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{Consumer: "busy"}, late)
		kit.OK(b, err)
		if want := (operate.Report{Changed: 150}); !reflect.DeepEqual(report, want) {
			b.Fatalf("report is %+v, want %+v", report, want)
		}
		if got, want := b.states(operate.Filter{State: parked.Waiting}), "late 100:waiting late 150:waiting"; got != want {
			b.Fatalf("states is %q, want %q", got, want)
		}
	})
}

// A call with a Rate takes as long as the Rate requires.
func TestRateBoundsAChange(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		b.fill(75, "busy")
		began := time.Now()
		report, err := b.messages.CancelMatching(b.Context(), ann, operate.Filter{Consumer: "busy"}, operate.Plan{Rate: 100})
		kit.OK(b, err)
		if report.Changed != 75 {
			b.Fatalf("report.Changed is %d, want 75", report.Changed)
		}
		if took := time.Since(began); took < 700*time.Millisecond {
			b.Fatalf("75 messages were changed in %v, at 100 per second", took)
		}
	})
}

// If a step of an operation fails in the database, the operation must return the error
// and change nothing.
func TestOperationWithAFailedStepChangesNothing(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		b.seed()
		kit.OK(t, kit.Err(b.store.Register(t.Context(), store.Consumer{Consumer: "stopped", Topic: topic, Owner: "host/1/a"})))
		all := operate.Filter{All: true}
		for _, o := range []struct {
			name    string
			batches bool // the operation has several transactions
			do      func(m *parked.Messages) error
		}{
			{"list", true, func(m *parked.Messages) error {
				_, err := m.List(t.Context(), operate.Filter{OrderingKey: "k"})
				return err
			}},
			{"get", false, func(m *parked.Messages) error {
				_, err := m.Get(t.Context(), b.id("due"))
				return err
			}},
			{"count", false, func(m *parked.Messages) error {
				_, err := m.Count(t.Context(), operate.Filter{MessageID: "due"})
				return err
			}},
			{"consumers", false, func(m *parked.Messages) error {
				_, err := m.Consumers(t.Context())
				return err
			}},
			{"dry run", false, func(m *parked.Messages) error {
				_, err := m.DryRun(t.Context(), parked.Discard, all)
				return err
			}},
			{"run now", false, func(m *parked.Messages) error { return m.RunNow(t.Context(), ann, b.id("failed")) }},
			{"cancel", false, func(m *parked.Messages) error { return m.Cancel(t.Context(), ann, b.id("failed")) }},
			{"discard", false, func(m *parked.Messages) error { return m.Discard(t.Context(), ann, b.id("head")) }},
			{"run matching", true, func(m *parked.Messages) error {
				_, err := m.RunNowMatching(t.Context(), ann, all, operate.Plan{})
				return err
			}},
			{"discard matching", true, func(m *parked.Messages) error {
				_, err := m.DiscardMatching(t.Context(), ann, all, operate.Plan{})
				return err
			}},
			{"remove a consumer", false, func(m *parked.Messages) error {
				return m.RemoveConsumer(t.Context(), ann, "stopped", topic, parked.RemoveOptions{Force: true})
			}},
		} {
			t.Run(o.name, func(t *testing.T) {
				if o.name == "run now" || o.name == "run matching" {
					b.Exec(`UPDATE once_parked SET due_at = ` + b.FromNow(time.Hour) + ` WHERE state = 'waiting'`)
				}
				kit.EachStepFails(t, db, !o.batches, func(db *sql.DB) error {
					m, err := parked.New(db, operate.Config{Schema: b.Config})
					if err != nil {
						return err
					}
					return o.do(m)
				})
			})
		}
	})
}
