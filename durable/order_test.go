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

// inOrder returns a bench that keeps the order of keys, and messages of one key.
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

// failing has some rows not stored, for a reason that is an SQLSTATE, until
// goOn, and counts the tries.
func (b *bench) failing(which, state string) (tries func() int, goOn func()) {
	b.Helper()
	b.exec(`CREATE SEQUENCE tries`)
	b.exec(fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'fails' USING ERRCODE = '%s'; END $$`, state))
	b.exec(fmt.Sprintf(`CREATE TRIGGER fail BEFORE INSERT ON once_parked FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fail()`, which))
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

// What goes back to the broker comes again behind what came after it. So in the
// order of keys nothing does, however long the table is away.
func TestKeyOrderAnOutageHandsNothingBack(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, goOn := b.failing("true", away)
	b.run(durable.Config{BatchSize: 1, UnackedWait: time.Nanosecond}, fine)
	b.send(msgs...)
	b.eventually("it was tried again", func() bool { return tries() >= 2 })
	goOn()
	b.acked(msgs...)
	b.handles("m1", "m2")
}

// At the end what could not be stored goes back, and with it all that came after.
func TestKeyOrderWhatIsHandedBackIsNotOvertaken(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, goOn := b.failing("NEW.message_id = 'm1'", away)
	b.run(durable.Config{BatchSize: 1}, fine)
	b.send(msgs...)
	b.eventually("it was tried", func() bool { return tries() >= 1 })
	if err := b.router.Close(); err != nil {
		t.Error(err)
	}
	goOn()
	for _, msg := range msgs {
		select {
		case <-msg.Nacked():
		default:
			t.Errorf("%s is not handed back", msg.UUID)
		}
	}
}

// One that the database refuses now, and may take later, is not overtaken by the
// others of its batch.
func TestKeyOrderARefusedMessageIsNotOvertaken(t *testing.T) {
	b, msgs := inOrder(t, "m1", "m2")
	tries, goOn := b.failing("NEW.message_id = 'm1'", refused)
	b.run(durable.Config{BatchSize: 2, BatchWait: time.Minute, KeepHandled: time.Hour}, fine)
	b.send(msgs...)
	b.eventually("both were tried together, one was alone, and again", func() bool { return tries() >= 3 })
	b.unanswered(msgs...)
	goOn()
	b.acked(msgs...)
	b.handles("m1", "m2")
	for n, e := range b.entries(parked.Resolved) {
		if e.MessageID != msgs[n].UUID {
			t.Errorf("row %d is %s", n, e.MessageID)
		}
	}
}
