package dedup_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
)

func withKey(key string) func(*dedup.Config) {
	return func(c *dedup.Config) {
		c.Key = func(*message.Message) string { return key }
	}
}

// If the same request arrives with another id, it must be skipped because of its key,
// and the inbox must remember only the first id.
func TestKeyIsHandledOnceUnderAnyID(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, withKey("order-17"))
		for _, id := range []string{"m1", "m2", "m2", ""} {
			if _, err := b.inbox.Middleware(apply)(message.NewMessage(id, []byte("body"))); err != nil {
				t.Fatalf("%q: %v", id, err)
			}
		}
		b.expect(1, 2, 0) // the id and the key of the first message
	})
}

func TestMessagesWithoutIDsAreDistinguishedByTheirKeys(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *dedup.Config) {
			c.Key = func(msg *message.Message) string { return string(msg.Payload) }
		})
		for _, body := range []string{"one", "two", "one"} {
			if _, err := b.inbox.Middleware(apply)(message.NewMessage("", []byte(body))); err != nil {
				t.Fatal(err)
			}
		}
		b.expect(2, 2, 0)
	})
}

// Trap 40. Another message with a used key must not be skipped as a duplicate.
func TestSameKeyWithOtherContentIsACollision(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, withKey("order-17"))
		if _, err := b.inbox.Middleware(apply)(message.NewMessage("m1", []byte("one"))); err != nil {
			t.Fatal(err)
		}
		_, err := b.inbox.Middleware(apply)(message.NewMessage("m2", []byte("two")))
		kindOf(t, err, disposition.Permanent)
		if !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 2, 0)
	})
}

// If Config.Content is set, only the part that it returns must be compared.
func TestContentReplacesThePayloadInComparisons(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *dedup.Config) {
			withKey("order-17")(c)
			c.Content = func(msg *message.Message) []byte {
				amount, _, _ := strings.Cut(string(msg.Payload), " at ")
				return []byte(amount)
			}
		})
		handle := b.inbox.Middleware(apply)
		for id, body := range map[string]string{"m1": "100 at noon", "m2": "100 at midnight"} {
			if _, err := handle(message.NewMessage(id, []byte(body))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := handle(message.NewMessage("m3", []byte("200 at noon"))); !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 2, 0)
	})
}

// Trap 39. If the inbox cannot store a key, the failure must be permanent, as for ids.
func TestUnusableKeyIsAPermanentFailure(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		for name, key := range map[string]string{
			"empty": "", "too long": strings.Repeat("x", 256), "NUL": "a\x00b", "invalid UTF-8": "a\xff",
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, testkit.SQLite(t), withKey(key))
				_, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil))
				kindOf(t, err, disposition.Permanent)
				if !errors.Is(err, dedup.ErrInvalidID) || !strings.Contains(err.Error(), "Key") {
					t.Errorf("%v", err)
				}
				b.expect(0, 0, 0)
			})
		}
		b := newBench(t, db, withKey("a"))
		_, err := b.inbox.Middleware(apply)(message.NewMessage("key:a", nil))
		kindOf(t, err, disposition.Permanent) // such an id would be taken for a key
	})
}

// The handler of an idempotent consumer must get its transaction and the outbox, and
// must run for every delivery.
func TestIdempotentConsumersRunForDuplicates(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.Idempotent = []string{"other", consumer} })
		for range 2 {
			if _, err := b.inbox.Middleware(produce("e1", nil))(message.NewMessage("", nil)); err != nil {
				t.Fatal(err)
			}
		}
		b.expect(2, 0, 2)
		if _, err := b.inbox.Middleware(produce("e1", errHandler))(message.NewMessage("m1", nil)); !errors.Is(err, errHandler) {
			t.Fatal(err)
		}
		b.expect(2, 0, 2)
	})
}
