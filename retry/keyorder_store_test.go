package retry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// If the database needs longer to store a batch than the timeout of one try, smaller
// batches must be stored. The same batch would exceed the timeout again and again.
func TestKeyOrderSplitsBatchAfterTimeout(t *testing.T) {
	b := inOrder(t, testkit.Postgres(t), retry.BlockWhileRetried)
	for _, query := range []string{
		`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$`,
		`CREATE TRIGGER slowly BEFORE INSERT ON once_parked FOR EACH ROW EXECUTE FUNCTION slowly()`,
	} {
		if _, err := b.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	b.retries.SetOneTry(time.Second)
	var done successes
	b.run(done.handle)
	var ids []string
	var msgs []*message.Message
	for n := range 12 { // the first message is stored alone, and the other messages arrive in the meantime
		ids = append(ids, fmt.Sprintf("a%d", n))
		msgs = append(msgs, keyed(ids[n]))
		b.transport.messages <- msgs[n]
	}
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			t.Fatalf("%s was nacked", msg.UUID)
		case <-time.After(time.Minute):
			t.Fatalf("%s is not stored", msg.UUID)
		}
	}
	b.allHandled()
	if got := done.idsOf("a"); got != strings.Join(ids, " ") {
		t.Errorf("handled %s", got)
	}
}

// While the table is missing, messages must wait, even longer than UnackedWait: if a
// message were nacked, later messages would be handled before it. A shutdown must nack
// the message and all later messages.
func TestKeyOrderWaitsLongerThanUnackedWaitForTheTable(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := inOrder(t, db, retry.BlockWhileRetried)
		var done successes
		b.run(done.handle)
		rename := func(from, to string) {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), `ALTER TABLE `+from+` RENAME TO `+to); err != nil {
				t.Fatal(err)
			}
		}
		rename("once_parked", "away")
		var messages []*message.Message
		for n := range 5 {
			messages = append(messages, keyed(fmt.Sprintf("a%d", n)))
			b.transport.messages <- messages[n]
		}
		rename("away", "once_parked")
		b.eventually("all are handled", func() bool { return done.idsOf("a") == "a0 a1 a2 a3 a4" })

		rename("once_parked", "away")
		messages = messages[:0]
		for n := range 3 {
			messages = append(messages, keyed(fmt.Sprintf("b%d", n)))
			b.transport.messages <- messages[n]
		}
		closed := make(chan error, 1)
		go func() { closed <- b.router.Close() }()
		for _, msg := range messages {
			select {
			case <-msg.Nacked():
			case <-msg.Acked():
				t.Fatalf("%s was acked", msg.UUID)
			case <-time.After(20 * time.Second):
				t.Fatalf("%s has neither ack nor nack", msg.UUID)
			}
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		rename("away", "once_parked")
	})
}
