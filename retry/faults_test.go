package retry_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// A message that arrives before an earlier version is parked until its turn, and no
// attempt is counted.
func TestEarlyMessageIsParkedWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			turn := disposition.Turn{AggregateType: "order", AggregateID: "7", Sequence: "5:order7", Version: 3}
			return disposition.NotYet(turn, time.Hour, errors.New("version 2 is missing"))
		})
		if !b.transport.deliver(t, message.NewMessage("m1", nil)) {
			t.Fatal("not acked")
		}
		rows := b.entries(parked.Waiting)
		if len(rows) != 1 || rows[0].Attempts != 0 || rows[0].Rounds != 0 || time.Until(rows[0].DueAt) < 50*time.Minute || calls.Load() != 1 {
			t.Errorf("%d calls, rows %+v", calls.Load(), rows)
		}
		if n := b.count(`once_parked WHERE early_of = '5:order7' AND early_version = 3`); n != 1 {
			t.Errorf("%d rows know what they wait for", n)
		}
	})
}

// If three consecutive calls have an unknown outcome, the third one counts as an attempt,
// so that a message that ends its own database session is not tried without end. There
// are pauses between the calls.
func TestThirdCallWithAnUnknownOutcomeIsAnAttempt(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Policy.Immediate, c.Policy.Delayed = 1, -1 })
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return disposition.HandBack(errHandler)
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		rows := b.entries(parked.Quarantined)
		if len(rows) != 1 || rows[0].Attempts != 2 || calls.Load() != 6 || rows[0].Reason != disposition.ReasonExhausted ||
			!strings.HasSuffix(rows[0].Error, "the outcome of 3 handler calls is unknown, last error: handler failed") {
			t.Errorf("%d calls, rows %+v", calls.Load(), rows)
		}
	})
}

// A redelivered message that cannot be parked returns to the transport. Its handler must
// not run, because an earlier call of it may have ended the process.
func TestRedeliveredMessageThatCannotBeParkedIsNacked(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.UnackedWait = time.Millisecond })
		b.run(neverCalled(t))
		if _, err := b.ExecContext(t.Context(), `ALTER TABLE once_parked RENAME TO away`); err != nil {
			t.Fatal(err)
		}
		msg := message.NewMessage("m1", nil)
		msg.Metadata["once_redelivered"] = "true"
		if b.transport.deliver(t, msg) {
			t.Error("acked without being stored")
		}
		if _, err := b.ExecContext(t.Context(), `ALTER TABLE away RENAME TO once_parked`); err != nil {
			t.Fatal(err)
		}
	})
}

// A redelivered message that could not be decoded is not parked, even without poison:
// its row would not be marked as undecodable, and the handler would get the raw
// content.
func TestRedeliveredMessageThatCannotBeDecodedIsNotParked(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		b.runNamed(consumer, topic, neverCalled(t))
		msg := message.NewMessage("m1", []byte("raw"))
		msg.Metadata["once_redelivered"] = "true"
		msg.SetContext(disposition.WithUndecodable(t.Context(), errHandler))
		if b.transport.deliver(t, msg) {
			t.Error("acked without being in quarantine")
		}
		if all := b.entries(""); len(all) != 0 {
			t.Errorf("the rows are %+v", all)
		}
	})
}

// refusing is a transport whose Subscribe fails.
type refusing struct{ *transport }

var errRefused = errors.New("no such queue")

func (refusing) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errRefused
}

// After a failed Subscribe, the consumer name is free again. Names that the database
// cannot store are refused before Subscribe uses the transport.
func TestFailedSubscribeLeavesTheNameFree(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), unshared)
	failing := b.retries.Subscriber(consumer, refusing{newTransport()})
	for range 2 {
		if _, err := failing.Subscribe(t.Context(), topic); !errors.Is(err, errRefused) {
			t.Errorf("got %v", err)
		}
	}
	if err := failing.Close(); err != nil {
		t.Error(err)
	}
	subscribed(t, b.retries, consumer, topic)

	for want, c := range map[string][2]string{
		"retry: the consumer name of Subscriber: ": {strings.Repeat("x", 256), topic},
		"retry: the topic: ":                       {"other", "a\x00"},
	} {
		sub := b.retries.Subscriber(c[0], newTransport())
		if _, err := sub.Subscribe(t.Context(), c[1]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}
}
