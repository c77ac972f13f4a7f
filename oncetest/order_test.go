package oncetest_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var errCall = errors.New("the call failed")

// act is one step in the transaction of a service.
type act func(ctx context.Context, s shop, tx *sql.Tx, events message.Publisher, who string) error

func lockTotal(ctx context.Context, _ shop, tx *sql.Tx, _ message.Publisher, _ string) error {
	_, err := tx.ExecContext(ctx, `SELECT sum FROM totals WHERE name = 'all' FOR UPDATE`)
	return err
}

func addToTotal(ctx context.Context, _ shop, tx *sql.Tx, _ message.Publisher, who string) error {
	_, err := tx.ExecContext(ctx, `UPDATE totals SET sum = sum + 5, last = $1 WHERE name = 'all'`, who)
	return err
}

func writeAudit(ctx context.Context, _ shop, tx *sql.Tx, _ message.Publisher, who string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO audit (what) VALUES ($1)`, who)
	return err
}

func publishTotal(_ context.Context, _ shop, _ *sql.Tx, events message.Publisher, who string) error {
	msg := message.NewMessage(who, nil)
	outbox.SetOrderingKey(msg, "all")
	return events.Publish("totals", msg)
}

func lockTotalKey(ctx context.Context, s shop, tx *sql.Tx, _ message.Publisher, _ string) error {
	return s.box().LockKey(ctx, tx, "all")
}

// onlyFrom simulates an optimistic lock: it fails if another transaction has changed the
// row in the meantime.
func onlyFrom(ctx context.Context, _ shop, tx *sql.Tx, _ message.Publisher, who string) error {
	result, err := tx.ExecContext(ctx, `UPDATE totals SET last = $1 WHERE name = 'all' AND last = ''`, who)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errors.New("another one was faster"), err)
	}
	return nil
}

func (s shop) box() *outbox.Outbox {
	box, err := outbox.New(outbox.Config{Schema: s.config})
	if err != nil {
		panic(err)
	}
	return box
}

// calls returns a configuration in which both calls do the given steps.
func (s shop) calls(acts ...act) oncetest.OrderConfig {
	call := func(who string) func(ctx context.Context, db *sql.DB) error {
		return func(ctx context.Context, db *sql.DB) error {
			return s.box().InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
				for _, act := range acts {
					if err := act(ctx, s, tx, events, who); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return oncetest.OrderConfig{DB: s.DB, First: call("credit"), Second: call("debit"), Reset: reset, Schema: s.config}
}

func examineOrder(t *testing.T, config oncetest.OrderConfig) *recorder {
	t.Helper()
	r := &recorder{TB: t, subs: map[string]*recorder{}}
	r.do(func(r *recorder) { oncetest.RunOrder(r, config) })
	return r
}

// Trap 85. If a transaction publishes first and then waits for a lock, it commits
// later, but its event is sent first. RunOrder reports this.
func TestServiceThatPublishesBeforeItLocksIsReported(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	first, second := "First pauses after publish 1", "Second pauses after publish 1"
	for name, c := range map[string]struct {
		acts  []act
		wrong []string
		said  string // text that only the error of this case contains
	}{
		"publishes before the row is locked": {
			[]act{publishTotal, addToTotal},
			[]string{first, second},
			"; after it had published, First ran: UPDATE totals SET sum = sum + 5, last = $1 WHERE name = 'all...; lock the rows",
		},
		"publishes in the middle":      {[]act{writeAudit, publishTotal, addToTotal}, []string{first, second}, "First ran: UPDATE totals"},
		"locks nothing in common":      {[]act{writeAudit, publishTotal}, []string{first, second}, "behind the other in the outbox; lock"},
		"locks the row first":          {[]act{lockTotal, publishTotal, addToTotal}, nil, ""},
		"publishes last":               {[]act{addToTotal, publishTotal}, nil, ""},
		"publishes before an insert":   {[]act{addToTotal, publishTotal, writeAudit}, nil, ""},
		"locks the key first":          {[]act{lockTotalKey, publishTotal, addToTotal}, nil, ""},
		"has an optimistic lock":       {[]act{onlyFrom, publishTotal}, nil, ""},
		"has an optimistic lock later": {[]act{publishTotal, onlyFrom}, nil, ""}, // one of the two calls fails
	} {
		t.Run(name, func(t *testing.T) {
			r := examineOrder(t, s.calls(c.acts...))
			if r.said != "" || len(r.subs) != 2 {
				t.Fatalf("said %q, %d subtests", r.said, len(r.subs))
			}
			if got := r.failed(); !slices.Equal(got, c.wrong) {
				t.Errorf("failed %q: %q", got, r.subs[first].said)
			}
			if c.wrong != nil {
				r.mustFail(first, `oncetest: First published message "credit" under the ordering key "all"; before it committed, Second published `+
					`and committed message "debit" under that key: the message that was committed first is behind the other in the outbox`, c.said,
					"lock the rows that the calls change before they publish, so publish last, or call outbox.LockKey first in each transaction")
			}
		})
	}
}

// Two calls that take their locks in different orders deadlock, and this is reported.
func TestCallsThatDeadlockAreReported(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	config := s.calls(lockTotalKey, publishTotal, addToTotal)
	config.Second = s.calls(addToTotal, lockTotalKey, publishTotal).Second
	examineOrder(t, config).mustFail("First pauses after publish 1", "First and Second at the same time: ", "deadlock detected",
		"take the locks in the same order in both")
}

// A mutex orders only the calls of one process, so calls that rely on a mutex are
// reported.
func TestCallsThatWaitInTheProcessAreReported(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	config := s.calls(publishTotal, addToTotal)
	config.Timeout = 2 * time.Second
	var mu sync.Mutex
	for _, call := range []*func(context.Context, *sql.DB) error{&config.First, &config.Second} {
		inner := *call
		*call = func(ctx context.Context, db *sql.DB) error {
			mu.Lock()
			defer mu.Unlock()
			return inner(ctx, db)
		}
	}
	examineOrder(t, config).mustFail("First pauses after publish 1",
		"neither ended nor waited for a lock of the database: a lock in this process does not stop another process")
}

// RunOrder refuses calls that it cannot test.
func TestCallsWithoutACommonKeyAreRefused(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		examineOrder(t, s.calls(addToTotal)).mustFail("", "oncetest: First, called alone: it published nothing with an ordering key")
		config := s.calls(addToTotal, publishTotal)
		config.Second = s.calls(addToTotal, func(_ context.Context, _ shop, _ *sql.Tx, events message.Publisher, who string) error {
			msg := message.NewMessage(who, nil)
			outbox.SetOrderingKey(msg, "other")
			return events.Publish("totals", msg)
		}).Second
		examineOrder(t, config).mustFail("", `publish under no common ordering key, so their order does not matter: ["all"] and ["other"]`)
		config = s.calls(addToTotal, publishTotal)
		config.First = func(context.Context, *sql.DB) error { return errCall }
		examineOrder(t, config).mustFail("", "First, called alone: "+errCall.Error())
		r := examineOrder(t, oncetest.OrderConfig{Timeout: -1})
		r.mustFail("", "DB is nil", "First is nil", "Second is nil", "Reset is nil", "Timeout is -1ns: negative")
	})
}

// RunOrder skips its subtests with SQLite, where calls cannot overtake each other,
// because SQLite has one writer.
func TestRunOrderSkipsSQLite(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.SQLite(t))
	if s.config.Dialect != schema.SQLite {
		t.Fatal("the test database is not SQLite")
	}
	r := examineOrder(t, s.calls(publishTotal, addToTotal))
	for name, sub := range r.subs {
		if !sub.skipped {
			t.Errorf("%s said %q", name, sub.said)
		}
	}
	if len(r.subs) != 2 {
		t.Errorf("%d subtests", len(r.subs))
	}
}
