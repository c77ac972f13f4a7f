package once_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// lockedBuffer is a bytes.Buffer that several goroutines may use.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// A part without a Logger must not hide that its database or broker cannot be
// reached.
func TestPartsWithoutALoggerLogToSlogsDefault(t *testing.T) {
	db := testkit.SQLite(t).DB
	if err := db.Close(); err != nil { // so that every statement fails
		t.Fatal(err)
	}
	nowhere := amqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:1/")
	channel := func() *gochannel.GoChannel {
		c := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for name, part := range map[string]struct {
		want string
		run  func(ctx context.Context) error // until ctx ends
	}{
		"forwarder": {"trying again", func(ctx context.Context) error {
			f, err := forwarder.New(db, channel(), forwarder.Config{})
			if err != nil {
				return err
			}
			return f.Run(ctx)
		}},
		"mover": {"Messages cannot be moved", func(ctx context.Context) error {
			m, err := mover.New(db, mover.Config{ConsumerGroup: "group"})
			if err != nil {
				return err
			}
			return m.Run(ctx)
		}},
		"dedup": {"Sweep of the inbox failed", func(ctx context.Context) error {
			i, err := dedup.New(db, dedup.Config{})
			if err != nil {
				return err
			}
			return i.Run(ctx)
		}},
		"retry": {"Parked messages cannot be fetched", func(ctx context.Context) error {
			r, err := retry.New(db, retry.Config{})
			if err != nil {
				return err
			}
			return drain(ctx, r.Subscriber("payments", channel()))
		}},
		"poison": {"Message stays unacked", func(ctx context.Context) error {
			s, err := poison.New(db, poison.Config{})
			if err != nil {
				return err
			}
			msg := message.NewMessage("1", nil)
			msg.SetContext(ctx)
			_, err = s.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") })(msg)
			return err
		}},
		"durable": {"store", func(ctx context.Context) error {
			i, err := durable.New(db, durable.Config{})
			if err != nil {
				return err
			}
			r, err := retry.New(db, retry.Config{Logger: watermill.NopLogger{}})
			if err != nil {
				return err
			}
			c := channel()
			if err := c.Publish("topic", message.NewMessage("1", nil)); err != nil {
				return err
			}
			return drain(ctx, r.Subscriber("payments", i.Subscriber(c)))
		}},
		"rabbit publisher": {"127.0.0.1:1", func(ctx context.Context) error {
			p, err := rabbit.NewPublisher(nowhere, rabbit.PublisherConfig{})
			if err != nil {
				return err
			}
			<-ctx.Done()
			return p.Close()
		}},
		"rabbit subscriber": {"127.0.0.1:1", func(ctx context.Context) error {
			s, err := rabbit.NewSubscriber(nowhere, rabbit.SubscriberConfig{})
			if err != nil {
				return err
			}
			return errors.Join(drain(ctx, s), s.Close())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var logs lockedBuffer
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&logs, nil)))
			defer slog.SetDefault(before)

			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- part.run(ctx) }()
			testkit.Eventually(t, time.Minute, "a log line", func() bool { return strings.Contains(logs.String(), part.want) })
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), sql.ErrConnDone.Error()) &&
				!strings.Contains(err.Error(), "database is closed") && err.Error() != "no" {
				t.Error(err)
			}
			if t.Failed() {
				t.Log(logs.String())
			}
		})
	}
}

// drain receives the messages of sub without an ack until ctx ends.
func drain(ctx context.Context, sub message.Subscriber) error {
	messages, err := sub.Subscribe(ctx, "topic")
	if err != nil {
		return err
	}
	<-ctx.Done()
	for range messages { // the messages are delivered again later
	}
	return nil
}
