package durable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// inOrder returns a bench with retry's KeyOrder, and messages that have the same
// ordering key.
func inOrder(t *testing.T, ids ...string) (*bench, []*message.Message) {
	t.Helper()
	b := newBench(t, testkit.Postgres(t))
	b.keyOrder = retry.BlockWhileRetried
	msgs := messages(ids...)
	for _, msg := range msgs {
		msg.Metadata[meta.OrderingKey] = "key"
	}
	return b, msgs
}

// failing makes inserts of rows that match condition fail with the error code sqlState,
// until the test calls repair. The returned function tries returns how many inserts
// have failed.
func (b *bench) failing(condition, sqlState string) (tries func() int, repair func()) {
	b.Helper()
	b.exec(`CREATE SEQUENCE tries`)
	b.exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'fails' USING ERRCODE = '%s'; END $$`, sqlState))
	b.exec(fmt.Sprintf(`CREATE TRIGGER fail BEFORE INSERT ON once_parked FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fail()`, condition))
	tries = func() (n int) {
		if err := b.QueryRowContext(b.Context(), `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries`).Scan(&n); err != nil {
			b.Fatal(err)
		}
		return n
	}
	return tries, func() { b.exec(`DROP TRIGGER fail ON once_parked`) }
}

const (
	away    = "57P03" // cannot_connect_now
	refused = "23514" // check_violation
)

// With KeyOrder no message is nacked, no matter how long the database is down. A nacked
// message would return behind its successors.
func TestKeyOrderNacksNothingDuringOutage(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("true", away)
	b.run(durable.Config{BatchSize: 1, UnackedWait: time.Nanosecond}, fine)
	b.send(msgs...)
	b.eventually("the insert was tried twice", func() bool { return tries() >= 2 })
	repair()
	b.acked(msgs...)
	b.handles("m1", "m2")
}

// At shutdown, messages that could not be stored are nacked, and so are all messages
// after them.
func TestKeyOrderShutdownNacksAllLaterMessages(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("NEW.message_id = 'm1'", away)
	b.run(durable.Config{BatchSize: 1}, fine)
	b.send(msgs...)
	b.eventually("the insert was tried", func() bool { return tries() >= 1 })
	if err := b.router.Close(); err != nil {
		t.Error(err)
	}
	repair()
	for _, msg := range msgs {
		select {
		case <-msg.Nacked():
		default:
			t.Errorf("%s is not nacked", msg.UUID)
		}
	}
}

// If the database refuses a message, the messages behind it in its batch wait, because
// the database may accept the message later.
func TestKeyOrderRefusedMessageIsNotOvertaken(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, repair := b.failing("NEW.message_id = 'm1'", refused)
	b.run(durable.Config{BatchSize: 2, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	b.send(msgs...)
	b.eventually("the batch was tried, then the first message alone, then again", func() bool { return tries() >= 3 })
	b.unacked(msgs...)
	repair()
	b.acked(msgs...)
	b.handles("m1", "m2")
	for n, e := range b.entries(parked.Resolved) {
		if e.MessageID != msgs[n].UUID {
			t.Errorf("row %d is %s", n, e.MessageID)
		}
	}
}
