package poison_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/poison"
)

func TestFailedMessageIsStoredByteForByteAndAcked(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		told := make(chan poison.Entry, 1)
		b := newBench(t, db, func(c *poison.Config) { c.OnQuarantine = func(e poison.Entry) { told <- e } })
		msg := message.NewMessage("m1", []byte("{\"n\": 1.0, \"z\":\"\\u0000\"}\x00\xff"))
		msg.Metadata = message.Metadata{"raw": "\xff\x00", "once_tenant_id": "acme"}
		before := msg.Copy()
		if err := b.handle("payments", msg, func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata["added"] = "by the handler" // this change must not be stored
			return nil, errHandler
		}); err != nil {
			t.Fatalf("not acked: %v", err)
		}
		entries := b.list()
		if len(entries) != 1 {
			t.Fatalf("%d entries", len(entries))
		}
		e := entries[0]
		if !e.Message.Equals(before) {
			t.Errorf("stored as %+v, was %+v", e.Message, before)
		}
		if e.Consumer != "payments" || e.Topic != "orders.placed" || e.Tenant != "acme" || e.Attempts != 1 ||
			e.Reason != chain.ReasonFailed || e.Error != "handler failed" || e.Fingerprint == "" || e.ErrorType != "*errors.errorString" {
			t.Errorf("entry %+v", e)
		}
		hooked := <-told
		if !hooked.Message.Equals(before) {
			t.Errorf("the hook was told of %+v", hooked.Message)
		}
		want := poison.Entry{
			ID: e.ID, Consumer: e.Consumer, Topic: e.Topic, Message: hooked.Message, MessageID: e.MessageID, Tenant: e.Tenant,
			Reason: e.Reason, Error: e.Error, ErrorType: e.ErrorType, Fingerprint: e.Fingerprint, Attempts: 1,
		}
		if hooked != want {
			t.Errorf("the hook was told %+v, want %+v", hooked, want)
		}
	})
}

// If the last failure of an entry was a panic, the entry contains the stack of the
// panic. Otherwise it contains no stack.
func TestEntryHasTheStackOfItsPanic(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		told := make(chan poison.Entry, 4)
		b := newBench(t, db, func(c *poison.Config) { c.OnQuarantine = func(e poison.Entry) { told <- e } })
		b.quarantinePanic("payments", "m1")
		e := b.list()[0]
		const here = "poison_test.(*bench).quarantinePanic"
		if !strings.Contains(e.Stack, here) || !utf8.ValidString(e.Stack) || len(e.Stack) > parkedrows.MaxStack {
			t.Errorf("the stack is %q", e.Stack)
		}
		if got := <-told; got.Stack != e.Stack {
			t.Errorf("the hook got the stack %q", got.Stack)
		}

		// The copy of a message that failed without a panic has no stack.
		b.quarantinePanic("payments", "m2")
		kit.OK(t, b.handle("payments", message.NewMessage("m2", nil), failing(errHandler)))
		for _, e := range b.list() {
			if e.MessageID == "m2" && (e.Error != errHandler.Error() || e.Stack != "") {
				t.Errorf("%s, and the stack %q", e.Error, e.Stack)
			}
		}
	})
}

func TestSuccessPassesThrough(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	out := message.NewMessage("out", nil)
	produced, err := b.store.Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{out}, nil
	})(message.NewMessage("m1", nil))
	if err != nil || len(produced) != 1 || produced[0] != out {
		t.Fatalf("%v, %v", produced, err)
	}
}

// A message whose error says nothing about the message is not stored. It is nacked and
// redelivered.
func TestTrap71UndecidedFailureIsNotQuarantined(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		undecided := fmt.Errorf("retry: %w", chain.HandBack(errHandler))
		if err := b.handle("payments", message.NewMessage("m1", nil), failing(undecided)); !errors.Is(err, errHandler) {
			t.Fatalf("got %v, want the error back", err)
		}
		if entries := b.list(); len(entries) != 0 {
			t.Fatalf("stored %+v", entries)
		}
	})
}

func TestTrap54FailureDuringShutdownIsNotQuarantined(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessageWithContext(ctx, "m1", nil)
	err := b.handle("payments", msg, func(*message.Message) ([]*message.Message, error) {
		cancel()
		return nil, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || len(b.list()) != 0 {
		t.Fatalf("error %v, stored %d", err, len(b.list()))
	}
}

// If the handler exceeds its deadline, this is a failure, and the message must be
// stored, although the context of the message has ended.
func TestTrap43ExpiredContextDoesNotPreventTheEntry(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		kit.OK(t, b.handle("payments", message.NewMessageWithContext(ctx, "m1", nil), failing(ctx.Err())))
		if len(b.list()) != 1 {
			t.Fatal("not stored")
		}
	})
}

// A message is acked only after it is stored.
func TestTrap43UnstoredMessageIsNotAcked(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		kit.Exec(t, db, `ALTER TABLE once_parked RENAME TO elsewhere`)
		err := b.handle("payments", message.NewMessage("m1", nil), failing(errHandler))
		if err == nil || !strings.Contains(err.Error(), "once_parked") {
			t.Fatalf("error %v does not name the table", err)
		}
		if chain.Of(err).Kind != chain.Undecided {
			t.Fatalf("%v counts against the message", err)
		}
	})
}

// Every message can be stored, whatever bytes it contains.
func TestTrap69EveryMessageCanBeStored(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		nasty := "\x00\xff\xfe" + noise(4000)
		for _, id := range []string{"", nasty, "\xff", "a\x00"} {
			msg := message.NewMessage(id, []byte(nasty))
			msg.Metadata = message.Metadata{nasty: nasty, "once_tenant_id": nasty}
			if err := b.handle(nasty, msg, failing(errors.New(nasty))); err != nil {
				t.Fatalf("id %.10q: %v", id, err)
			}
		}
		entries := b.list()
		if len(entries) != 4 {
			t.Fatalf("%d stored, want 4", len(entries))
		}
		for i, id := range []string{"", nasty, "\xff", "a\x00"} {
			if entries[i].Message.UUID != id || string(entries[i].Message.Payload) != nasty || entries[i].Message.Metadata[nasty] != nasty {
				t.Errorf("entry %d is not what was stored", i)
			}
		}
	})
}

// noise returns a text of n letters that a database cannot compress. A compressed text
// could fit into an index although its original is too long.
func noise(n int) string {
	var text strings.Builder
	for sum := sha256.Sum256(nil); ; sum = sha256.Sum256(sum[:]) {
		for _, b := range sum {
			if n--; n < 0 {
				return text.String()
			}
			text.WriteRune(0x100 + rune(b))
		}
	}
}

// Messages without an id are stored as different messages, even if they have the same
// payload.
func TestTrap39MessagesWithoutIDAreAllStored(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for range 3 {
			kit.OK(t, b.handle("payments", message.NewMessage("", []byte("same")), failing(errHandler)))
		}
		if n := len(b.list()); n != 3 {
			t.Fatalf("%d stored, want 3", n)
		}
	})
}

// Two copies of a message share a row. If one copy fails while the other one waits for
// its next attempt, the row is quarantined.
func TestFailedCopyQuarantinesTheWaitingRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		d := &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed"}
		waiting := parkedrows.Failure{Err: errHandler, Attempts: 3, Rounds: 1}
		kit.OK(t, b.parked.Park(t.Context(), d, message.NewMessage("m1", nil), waiting, time.Hour))
		kit.OK(t, b.handle("payments", message.NewMessage("m1", nil), failing(errHandler)))
		entries := rows.Parked(t, b.parked)
		if len(entries) != 1 || entries[0].State != parkedrows.Quarantined || entries[0].Attempts != 4 {
			t.Fatalf("entries %+v", entries)
		}
	})
}

func TestConfigNamesTheField(t *testing.T) {
	if _, err := poison.New(nil, poison.Config{UnackedWait: -1}); err == nil ||
		!strings.Contains(err.Error(), "UnackedWait") || !strings.Contains(err.Error(), "db is nil") {
		t.Fatalf("error %v", err)
	}
}

// poison recovers panics itself, so it must log the stack.
func TestPanicIsLoggedWithItsStack(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var logs kit.Logs
		b := newBench(t, db, func(c *poison.Config) { c.Logger = &logs })
		kit.OK(t, b.handle("payments", message.NewMessage("m1", nil), func(*message.Message) ([]*message.Message, error) {
			panic("boom")
		}))
		if !logs.Has("Message is quarantined", "panic: boom", "stack=", "middleware_test.go") {
			t.Errorf("where it panicked is not said:\n%s", strings.Join(logs.Lines(), "\n"))
		}
	})
}
