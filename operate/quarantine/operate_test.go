package quarantine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

var act = operate.Act{Actor: "ann", Why: "stock was corrected"}

func (b *bench) quarantine(consumer string, ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, b.handle(consumer, message.NewMessage(id, []byte("body")), failing(errHandler)))
	}
}

func TestListPagesAndFilters(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "p1", "p2", "p3")
		b.quarantine("inventory", "i1")
		page, err := b.store.List(t.Context(), operate.Filter{Consumer: "payments", Limit: 2})
		if err != nil || len(page.Rows) != 2 || page.Rows[0].MessageID != "p1" || page.Rows[1].MessageID != "p2" {
			t.Fatalf("%v, first page %+v", err, page.Rows)
		}
		page, err = b.store.List(t.Context(), operate.Filter{Consumer: "payments", Limit: 2, AfterID: page.Next})
		if err != nil || len(page.Rows) != 1 || page.Rows[0].MessageID != "p3" || page.Next != 0 {
			t.Fatalf("%v, second page %+v", err, page)
		}
		if _, err := b.store.List(t.Context(), operate.Filter{Limit: -1}); err == nil || !strings.Contains(err.Error(), "Limit") {
			t.Fatalf("error %v does not name Limit", err)
		}
	})
}

// A replayed message is due immediately, and only for the consumer that failed. Its
// attempts and crashes are counted from zero again. The audit records the replay.
func TestTrap53ReplayReturnsToTheConsumerThatFailed(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1")
		b.quarantine("inventory", "m1")
		entry := b.list()[0]
		kit.OK(t, b.store.Replay(t.Context(), act, entry.ID))
		for want, consumer := range []string{"inventory", "payments"} {
			claimed, err := b.parked.Claim(t.Context(), parkedrows.Select{
				Consumer: consumer, Topic: "orders.placed", Owner: "me", Limit: 10, Lease: time.Minute,
			})
			if err != nil || len(claimed) != want {
				t.Fatalf("%s: %d rows due, %v", consumer, len(claimed), err)
			}
			for _, c := range claimed {
				if c.Attempts != 0 || c.Rounds != 0 || c.Crashes != 1 || c.Replays != 1 {
					t.Fatalf("the budgets are not fresh: %+v", c.Claim)
				}
			}
		}
		want := fmt.Sprintf("ann | replay | parked:%d | payments | m1 | stock was corrected", entry.ID)
		if lines := b.Audits(); len(lines) != 1 || lines[0] != want {
			t.Fatalf("audit is %q, want %q", lines, want)
		}
	})
}

// Replay and Discard change all messages or no message, because a partial change would
// look like a complete one.
func TestReplayAndDiscardAreAllOrNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1", "m2")
		first := b.list()[0].ID
		for name, do := range map[string]func(ids ...int64) error{
			"replay":  func(ids ...int64) error { return b.store.Replay(t.Context(), act, ids...) },
			"discard": func(ids ...int64) error { return b.store.Discard(t.Context(), act, ids...) },
		} {
			err := do(first, 4711)
			if !errors.Is(err, operate.ErrNotFound) || !strings.Contains(err.Error(), "4711") {
				t.Errorf("%s: error %v does not name the missing one", name, err)
			}
			if err := do(); err == nil {
				t.Errorf("%s of nothing is accepted", name)
			}
		}
		if len(b.list()) != 2 || len(b.Audits()) != 0 {
			t.Fatalf("%d in quarantine, audit %q", len(b.list()), b.Audits())
		}
	})
}

// Every act must name a person. An act that may lose messages must also name the
// reason. Edit, Import, Note and StopReplay have their own tests.
func TestActWithoutAPersonOrAReasonIsRefused(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a replay of all entries would wait for a consumer
		defer cancel()
		id, all := b.list()[0].ID, operate.Filter{All: true}
		nobody, silent := operate.Act{Why: "because"}, operate.Act{Actor: "ann"}
		for name, c := range map[string]struct {
			loses bool
			do    func(operate.Act) error
		}{
			"Replay": {false, func(act operate.Act) error { return b.store.Replay(ctx, act, id) }},
			"ReplayMatching": {false, func(act operate.Act) error {
				_, err := b.store.ReplayMatching(ctx, act, all, operate.Plan{})
				return err
			}},
			"Resume": {false, func(act operate.Act) error {
				_, err := b.store.Resume(ctx, act, 1, nil)
				return err
			}},
			"Discard": {true, func(act operate.Act) error { return b.store.Discard(ctx, act, id) }},
			"DiscardMatching": {true, func(act operate.Act) error {
				_, err := b.store.DiscardMatching(ctx, act, all)
				return err
			}},
		} {
			if err := c.do(nobody); err == nil || !strings.Contains(err.Error(), "Actor is empty") {
				t.Errorf(`%s: got %v, want an error with "Actor is empty"`, name, err)
			}
			if !c.loses {
				continue
			}
			if err := c.do(silent); err == nil || !strings.Contains(err.Error(), "Why is empty") {
				t.Errorf(`%s: got %v, want an error with "Why is empty"`, name, err)
			}
		}
		if len(b.list()) != 1 || len(b.Audits()) != 0 {
			t.Errorf("%d in quarantine, audit %q", len(b.list()), b.Audits())
		}
	})
}

func TestRepeatedIDCountsOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.quarantine("payments", "m1", "m2")
		first, second := b.list()[0].ID, b.list()[1].ID
		kit.Check(t, b.store.Replay(t.Context(), act, first, first))
		kit.Check(t, b.store.Discard(t.Context(), act, second, second))
		if lines := b.Audits(); len(lines) != 2 {
			t.Errorf("audit %q", lines)
		}
	})
}

// If two operators discard the same entries, the second one gets ErrNotFound, even if the
// IDs are in another order.
func TestTwoOperatorsDoNotDeadlock(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	b.fill("payments", 300)
	var ids []int64
	for _, e := range b.list2() {
		ids = append(ids, e.ID)
	}
	backwards := slices.Clone(ids)
	slices.Reverse(backwards)
	errs := make(chan error, 2)
	for _, order := range [][]int64{ids, backwards} {
		go func() { errs <- b.store.Discard(t.Context(), act, order...) }()
	}
	one, other := <-errs, <-errs
	if one != nil {
		one, other = other, one
	}
	if one != nil || !errors.Is(other, operate.ErrNotFound) {
		t.Fatalf("%v, and %v", one, other)
	}
}

// A late copy of a discarded message counts as handled.
func TestTrap72DiscardedMessageDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.quarantine("payments", "m1", "")
		entries := b.list()
		kit.OK(t, b.store.Discard(t.Context(), act, entries[0].ID, entries[1].ID))
		if len(b.list()) != 0 || len(b.Audits()) != 2 {
			t.Fatalf("%d in quarantine, audit %q", len(b.list()), b.Audits())
		}
		var id, consumer string
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT message_id, consumer FROM once_inbox`).Scan(&id, &consumer))
		if id != "m1" || consumer != "payments" {
			t.Fatalf("the tombstone is for %q of %q", id, consumer)
		}
		entry, err := b.store.Get(t.Context(), entries[0].ID)
		if err != nil || entry.State != parkedrows.Discarded || string(entry.Message.Payload) != "body" {
			t.Fatalf("%v, entry %+v", err, entry)
		}
		if _, err := b.store.Get(t.Context(), 4711); !errors.Is(err, operate.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	})
}
