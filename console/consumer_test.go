package console_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/retry"
)

// handled are the payloads that a consumer has handled.
type handled struct {
	sync.Mutex

	payloads []string
}

func (h *handled) all() []string {
	h.Lock()
	defer h.Unlock()
	return append([]string(nil), h.payloads...)
}

// consume runs the consumer "payments" of the topic "orders.placed" until the test ends. Its
// handler refuses payloads that contain "bad". If gate is not nil, the handler waits until gate is
// closed.
func (b *bench) consume(gate <-chan struct{}) *handled {
	b.Helper()
	var h handled
	transport, err := embedded.New(b.DB, embedded.Config{Schema: b.tables, Logger: watermill.NopLogger{}})
	if err != nil {
		b.Fatal(err)
	}
	consumer, err := once.NewConsumer(b.DB, once.ConsumerConfig{Schema: b.tables, Logger: watermill.NopLogger{}})
	if err != nil {
		b.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			if strings.Contains(string(msg.Payload), "bad") {
				return nil, retry.Permanent(errors.New("still bad"))
			}
			h.Lock()
			defer h.Unlock()
			h.payloads = append(h.payloads, string(msg.Payload))
			return nil, nil
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	b.Cleanup(func() {
		cancel()
		if err := errors.Join(router.Close(), <-ended); err != nil {
			b.Fatal(err)
		}
	})
	return &h
}
