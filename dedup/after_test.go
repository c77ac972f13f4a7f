package dedup_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
)

// afterwards registers functions with AfterCommit, and records their calls and which
// rows were committed at the time of each call.
type afterwards struct {
	b *bench

	mu    sync.Mutex
	calls []string
}

func (a *afterwards) of(ctx context.Context, name string) error {
	return dedup.AfterCommit(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.calls = append(a.calls, fmt.Sprintf("%s %d", name, a.b.Count("effects")))
	})
}

func (a *afterwards) expect(calls ...string) {
	a.b.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.calls, calls) {
		a.b.Errorf("calls %q, want %q", a.calls, calls)
	}
}

func TestAfterCommitSeesTheCommit(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		a := afterwards{b: b}
		fail := true
		h := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			for _, name := range []string{"first", "second"} {
				if err := a.of(msg.Context(), name); err != nil {
					return nil, err
				}
			}
			if fail {
				return nil, errHandler
			}
			return apply(msg)
		})
		msg := message.NewMessage("m1", nil)
		if _, err := h(msg); err == nil {
			t.Fatal("the handler did not fail")
		}
		a.expect()
		fail = false
		for range 2 { // the second delivery is a duplicate
			kit.OK(t, kit.Err(h(msg)))
		}
		a.expect("first 1", "second 1")
	})
}

func TestAfterCommitIsNotCalledIfTheCommitFails(t *testing.T) {
	b := newBench(t, kit.Postgres(t), nil)
	b.Exec(`CREATE TABLE parents (id text PRIMARY KEY)`)
	b.Exec(`CREATE TABLE children (parent text REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`)
	a := afterwards{b: b}
	h := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO children VALUES ('none')`); err != nil {
			return nil, err
		}
		return nil, a.of(msg.Context(), "called")
	})
	if _, err := h(message.NewMessage("m1", nil)); err == nil {
		t.Error("the commit did not fail")
	}
	a.expect()
}

// If one message of a batch fails, the batch is rolled back and runs again without it.
// Functions of the first attempt must not be called.
func TestAfterCommitOfABatch(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inBatches(t, db, 3, nil)
		a := afterwards{b: b}
		h := b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			if err := a.of(msg.Context(), "after"); err != nil {
				return nil, err
			}
			if msg.UUID == "m01" {
				return nil, errHandler
			}
			return apply(msg)
		})
		if errs := deliver(h, numbered(3)...); errs[0] != nil || errs[1] == nil || errs[2] != nil {
			t.Fatal(errs)
		}
		a.expect("after 2", "after 2")

		set := b.inbox.BatchHandler(func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
			return nil, a.of(ctx, fmt.Sprintf("set of %d", len(msgs)))
		})
		if errs := deliver(set, numbered(6)[3:]...); errs[0] != nil || errs[1] != nil || errs[2] != nil {
			t.Fatal(errs)
		}
		a.expect("after 2", "after 2", "set of 3 2")
	})
}

// If a function panics, the message must remain handled, because it is committed.
func TestAfterCommitPanics(t *testing.T) {
	logs := watermill.NewCaptureLogger()
	b := newBench(t, kit.SQLite(t), func(c *dedup.Config) { c.Logger = logs })
	a := afterwards{b: b}
	h := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if err := dedup.AfterCommit(msg.Context(), func() { panic("on purpose") }); err != nil {
			return nil, err
		}
		return nil, a.of(msg.Context(), "second")
	})
	kit.Check(t, kit.Err(h(message.NewMessage("m1", nil))))
	a.expect("second 0")
	b.expect(0, 1, 0)
	logged := logs.Captured()[watermill.ErrorLogLevel]
	if len(logged) != 1 || logged[0].Msg != "Function of AfterCommit panicked" || !strings.Contains(logged[0].Err.Error(), "on purpose") {
		t.Errorf("%+v", logged)
	}
}

func TestAfterCommitRefusesWhatItWouldNotCall(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	var returned *message.Message
	var inside error
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		returned = msg.Copy()
		returned.SetContext(msg.Context())
		inside = dedup.AfterCommit(msg.Context(), nil)
		return nil, nil
	})(message.NewMessage("m1", nil))
	kit.OK(t, err)
	for _, c := range []struct {
		err  error
		want string
	}{
		{inside, "dedup: AfterCommit: the function is nil"},
		{dedup.AfterCommit(t.Context(), func() {}), "dedup: AfterCommit: the context has no transaction: pass the context that the handler got"},
		{dedup.AfterCommit(returned.Context(), func() {}), "dedup: AfterCommit: the handler has returned: call AfterCommit before that"},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
}
