package retry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// If a handler fails, the message must be parked, and the transport's copy must be
// acked. When the handler succeeds, the row of the message must be removed.
func TestFailingMessageIsParkedAndHandledLater(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		done := make(chan *message.Message, 1)
		b.run(func(msg *message.Message) error {
			if calls.Add(1) < 4 {
				return errHandler
			}
			done <- msg.Copy()
			return nil
		})
		msg := message.NewMessage("m1", []byte("a\x00\xffb"))
		msg.Metadata["raw"] = "\xff\x00"
		if !b.transport.deliver(t, msg) {
			t.Fatal("the message was not acked when it was parked")
		}
		got := <-done
		if got.UUID != "m1" || string(got.Payload) != "a\x00\xffb" || got.Metadata["raw"] != "\xff\x00" {
			t.Fatalf("came back as %q %q %q", got.UUID, got.Payload, got.Metadata)
		}
		b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		if n := calls.Load(); n != 4 {
			t.Fatalf("the handler was called %d times, want 4", n)
		}
	})
}

func TestMessageIsQuarantinedAfterLastRound(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			return fmt.Errorf("call %d: %w", calls.Add(1), errHandler)
		})
		b.transport.deliver(t, message.NewMessage("m1", []byte("body")))
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		entry := b.entries(parkedrows.Quarantined)[0]
		if n := calls.Load(); n != 4 || entry.Attempts != 4 || entry.Reason != chain.ReasonExhausted {
			t.Fatalf("%d calls, entry %+v", n, entry)
		}
		if !strings.Contains(entry.Error, "call 4") || entry.FirstFailedAt.IsZero() || entry.LastFailedAt.Before(entry.FirstFailedAt) {
			t.Fatalf("entry %+v", entry)
		}
	})
}

func TestPermanentErrorIsQuarantinedAtOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return fmt.Errorf("wrapped: %w", retry.Permanent(errHandler))
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		entries := b.entries(parkedrows.Quarantined)
		if len(entries) != 1 || entries[0].Reason != chain.ReasonPermanent || calls.Load() != 1 {
			t.Fatalf("%d calls, entries %+v", calls.Load(), entries)
		}
	})
}

func TestAfterSetsDelay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return retry.After(errHandler, time.Hour)
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		entries := b.entries(parkedrows.Waiting)
		if len(entries) != 1 || calls.Load() != 1 {
			t.Fatalf("%d calls, entries %+v", calls.Load(), entries)
		}
		if in := entries[0].DueAt.Sub(entries[0].LastFailedAt); in < 59*time.Minute || in > 61*time.Minute {
			t.Fatalf("due in %v, want an hour", in)
		}
	})
}

func TestPermanentAndAfterKeepNil(t *testing.T) {
	if retry.Permanent(nil) != nil || retry.After(nil, time.Second) != nil {
		t.Fatal("got an error for nil")
	}
}

// A panic must count as a failed attempt, and must not end the retries.
func TestTrap65PanicIsRetriedAndQuarantined(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var logs kit.Logs
		b := newBench(t, db, func(c *retry.Config) { c.Logger = &logs })
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			panic("boom")
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if entry := b.entries(parkedrows.Quarantined)[0]; calls.Load() != 4 || !strings.Contains(entry.Error, "panic: boom") {
			t.Fatalf("%d calls, entry %+v", calls.Load(), entry)
		}
		if !logs.Has("trying again", "stack=", "retry_test.go") || !logs.Has("is parked", "stack=", "retry_test.go") {
			t.Errorf("the log does not show the place of the panic:\n%s", strings.Join(logs.Lines(), "\n"))
		}
	})
}

// A handler may leave a cancelled context or a changed message behind. Later tries must
// get the original context and message.
func TestTrap57EachTryGetsOriginalMessageAndContext(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		problems := make(chan string, 10)
		b.run(func(msg *message.Message) error {
			if err := msg.Context().Err(); err != nil {
				problems <- "the context is " + err.Error()
			}
			if string(msg.Payload) != "body" || msg.Metadata["k"] != "v" {
				problems <- fmt.Sprintf("the message is %q %v", msg.Payload, msg.Metadata)
			}
			if calls.Add(1) == 4 {
				return nil
			}
			ctx, cancel := context.WithTimeout(msg.Context(), time.Nanosecond)
			defer cancel()
			msg.SetContext(ctx)
			copy(msg.Payload, "else")
			msg.Metadata["k"] = "changed"
			<-ctx.Done()
			return ctx.Err()
		})
		msg := message.NewMessage("m1", []byte("body"))
		msg.Metadata["k"] = "v"
		b.transport.deliver(t, msg)
		b.Eventually("four calls", func() bool { return calls.Load() == 4 })
		select {
		case problem := <-problems:
			t.Fatal(problem)
		default:
		}
	})
}

func TestTrap54FailureDuringShutdownIsNotCharged(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for _, where := range []string{"from the transport", "parked"} {
			t.Run(where, func(t *testing.T) {
				b := newBench(t, db, nil)
				entered := make(chan struct{}, 1)
				closing := make(chan struct{})
				b.run(func(msg *message.Message) error {
					select {
					case entered <- struct{}{}:
					default: // a second call would be noticed because of its row
					}
					<-closing
					return errors.New("cancelled: the service is going down")
				})
				msg := message.NewMessage("m-"+where, nil)
				if where == "parked" {
					kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, msg))
				} else {
					go func() { b.transport.messages <- msg }()
				}
				<-entered
				go func() {
					b.Eventually("the subscriber is closing", b.transport.closed.Load)
					close(closing)
				}()
				// The router's Close could end the context first. In this test the
				// consumer must notice the shutdown before the handler fails.
				kit.OK(t, b.subscriber.Close())
				entries := b.entries("")
				if where == "from the transport" {
					if len(entries) != 0 {
						t.Fatalf("parked: %+v", entries)
					}
					<-msg.Nacked()
					return
				}
				if len(entries) != 1 || entries[0].State != parkedrows.Waiting || entries[0].Attempts != 0 || entries[0].Crashes != 0 {
					t.Fatalf("entries %+v", entries)
				}
				if entries[0].DueAt.After(time.Now().Add(time.Second)) {
					t.Fatalf("the row is not due: %v", entries[0].DueAt)
				}
			})
		}
	})
}

// When the router's context ends, fetching must end. But handlers of claimed messages
// must be able to finish, and their contexts must not be cancelled.
func TestTrap54CancelledRouterLetsParkedMessagesFinish(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		sub := b.retries.Subscriber(consumer, b.transport)
		messages, err := sub.Subscribe(ctx, topic)
		kit.OK(t, err)
		b.put("m1")
		msg := <-messages
		cancel()
		b.Eventually("the subscription is closing", func() bool {
			select {
			case <-parkedrows.DeliveryOf(msg.Context()).Closing:
				return true
			default:
				return false
			}
		})
		if err := msg.Context().Err(); err != nil {
			t.Errorf("the context of the running message has ended: %v", err)
		}
		msg.Ack()
		kit.OK(t, sub.Close())
		if rows := b.entries(""); len(rows) != 0 {
			t.Fatalf("rows are left: %+v", rows)
		}
	})
}

// Another middleware may ack a message in spite of its error. This ack must not resolve
// the row.
func TestTrap70AckWithoutSuccessDoesNotResolve(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		swallow := func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, _ = h(msg)
				return nil, nil
			}
		}
		handled := make(chan struct{}, 1)
		b.runWith(func(*message.Message) error {
			handled <- struct{}{}
			return retry.Permanent(errHandler)
		}, swallow, b.retries.Middleware)
		b.put("m1")
		<-handled
		kit.OK(t, b.router.Close())
		if rows := b.entries(parkedrows.Waiting); len(rows) != 1 {
			t.Fatalf("rows are %+v, want the message to wait", b.entries(""))
		}
	})
}

// Without Subscriber, a parked message would not be delivered again, so nothing may be
// parked.
func TestMiddlewareWithoutSubscriberParksNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	calls := 0
	_, err := b.retries.Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, errHandler
	})(message.NewMessage("m1", nil))
	if !errors.Is(err, errHandler) || !strings.HasPrefix(err.Error(), "retry: given up after attempt 2: ") || calls != 2 {
		t.Fatalf("%d calls, error %v", calls, err)
	}
	if len(b.entries("")) != 0 {
		t.Fatal("the message is parked without a subscriber")
	}
}

// Without the middleware, an ack means that the message was handled. After the ack, the
// context of the message ends. After Close, the consumer does not count as running.
func TestSubscriberWithoutMiddlewareResolvesAckedMessage(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		contexts := make(chan context.Context, 1)
		b.runWith(func(msg *message.Message) error {
			contexts <- msg.Context()
			return nil
		})
		kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("m1", nil)))
		b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		handled := <-contexts
		b.Eventually("the context of the message ends", func() bool { return handled.Err() != nil })
		b.Eventually("the consumer counts as running", func() bool { return b.Count("once_consumer_instances") == 1 })
		kit.OK(t, b.subscriber.Close())
		if n := b.Count("once_consumer_instances"); n != 0 {
			t.Errorf("%d instances count as running after Close", n)
		}
	})
}

func TestSubscribeErrorNamesMissingArgument(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	for want, sub := range map[string]message.Subscriber{
		"consumer name": b.retries.Subscriber("", b.transport),
		"nil":           b.retries.Subscriber(consumer, nil),
	} {
		if _, err := sub.Subscribe(t.Context(), topic); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	sub := b.retries.Subscriber(consumer, newTransport())
	for range 2 {
		kit.OK(t, sub.Close())
	}
	if _, err := sub.Subscribe(t.Context(), topic); err == nil {
		t.Error("Subscribe works after Close")
	}
}

// If the database returns an error that has nothing to do with the message, such as a
// missing permission, no attempt is counted. The message may wait for a long time, so the
// log must contain the reason.
func TestLongWaitForUndecidedMessageIsLoggedOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	var logs kit.Logs
	b := newBench(t, kit.SQLite(t), func(c *retry.Config) { c.Logger = &logs })
	denied, calls := errors.New("permission denied"), 0
	b.run(func(*message.Message) error {
		calls++
		if calls < 8 { // this takes about three seconds
			return chain.NotCalled(denied)
		}
		return nil
	})
	if !b.transport.deliver(t, message.NewMessage("id", nil)) {
		t.Error("not acked")
	}
	if n := logs.Count("ERROR", "Message is held", "permission denied", "message_uuid=id", "consumer="+consumer); n != 1 {
		t.Errorf("logged %d times: %v", n, logs.Lines())
	}
}
