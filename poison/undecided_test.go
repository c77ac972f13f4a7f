package poison_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
)

// Trap 80. Without retry in the chain, a message that ends its own database session looks
// like an outage each time. After three calls it must go to quarantine.
func TestUndecidedCallsWithoutRetryEndInQuarantine(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	calls := 0
	handler := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		calls++
		tx, _ := dedup.TxFromContext(msg.Context())
		return nil, endSession(msg.Context(), tx)
	})
	for i := 1; i <= 3; i++ {
		err := b.handle("payments", message.NewMessage("m1", []byte("body")), handler)
		if undecided := chain.Of(err).Kind == chain.Undecided; undecided != (i < 3) || err == nil != (i == 3) {
			t.Fatalf("after call %d the error is %v", i, err)
		}
	}
	const says = "poison: the outcome of 3 handler calls is unknown, last error: " // the rest of the text is from the driver
	entries := b.list()
	if calls != 3 || len(entries) != 1 || entries[0].Attempts != 3 || entries[0].Reason != poison.ReasonFailed ||
		!strings.HasPrefix(entries[0].Error, says) {
		t.Errorf("%d calls, entries %+v", calls, entries)
	}
}

func endSession(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
	return err
}

// Only consecutive calls for the same message count. A call of the middleware that did
// not call the handler, a success, and calls for another message do not count.
func TestUndecidedCallsAreCountedForEachMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	lost := errors.New("lost")
	undecided := failing(chain.HandBack(lost))
	call := func(id string, h message.HandlerFunc) {
		t.Helper()
		_ = b.handle("payments", message.NewMessage(id, []byte("body of "+id)), h)
	}
	for range 10 {
		call("not called", failing(chain.NotCalled(lost)))
		call("returned by retry", failing(chain.Returned(lost)))
	}
	for _, id := range []string{"m1", "m2"} {
		call(id, undecided)
		call(id, undecided)
	}
	call("m1", failing(nil))
	call("m1", undecided)
	call("m1", undecided)
	if entries := b.list(); len(entries) > 0 {
		t.Fatalf("in quarantine are %+v", entries)
	}
	for range 3 { // without an id, the payload identifies the message
		_ = b.handle("payments", message.NewMessage("", []byte("one")), undecided)
	}
	_ = b.handle("payments", message.NewMessage("", []byte("other")), undecided)
	if entries := b.list(); len(entries) != 1 || string(entries[0].Message.Payload) != "one" {
		t.Fatalf("in quarantine are %+v", entries)
	}
}
