package roles

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// deliver delivers msg to a consumer, which must ack it.
func (p *part) deliver(to *kit.Subscriber, msg *message.Message) {
	p.Helper()
	timeout := time.After(time.Minute)
	select {
	case to.Messages <- msg:
	case <-timeout:
		p.Fatalf("%s is not taken; denied: %v", msg.UUID, p.denied())
	}
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
		p.Fatalf("%s is nacked; denied: %v", msg.UUID, p.denied())
	case <-timeout:
		p.Fatalf("%s is not answered; denied: %v", msg.UUID, p.denied())
	}
	p.permitted()
}

// handler returns a handler that fails for certain message ids, until mended is true.
func handler(mended *atomic.Bool) once.HandlerFunc {
	var calls atomic.Int64
	return func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		switch {
		case strings.HasPrefix(msg.UUID, "fails") && !mended.Load():
			return nil, retry.Permanent(errors.New("fails"))
		case msg.UUID == "again" && calls.Add(1) < 6: // the message also fails in the first round after it was parked
			return nil, errors.New("once more")
		}
		return nil, nil
	}
}

// consume runs a consumer until some messages are in quarantine. The consumer then continues, with
// a handler that succeeds, until end is called.
func (p *part) consume() (end func()) {
	p.Helper()
	consumer, err := once.NewConsumer(p.db, once.ConsumerConfig{
		Schema: tables, DurableConsumers: []string{"durable"},
		Durable: durable.Config{KeepHandled: time.Hour},
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 3, Base: 10 * time.Millisecond},
			PollInterval: 10 * time.Millisecond, KeyOrder: retry.BlockWhileQuarantined,
		},
		Sequence: &sequence.Config{Policy: sequence.HoldForGap},
	})
	kit.OK(p, err)
	transport, err := embedded.New(p.db, embedded.Config{Schema: tables, Logger: watermill.NopLogger{}})
	p.must(err)
	p.exec(p.admin, `INSERT INTO app.mine_consumers (consumer, topic, seen_at) VALUES ('retired', 'orders', now() - interval '1 hour')`)
	_, err = transport.Forget(p.Context(), "retired", "orders")
	p.must(err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(p, err)
	plain, durable := kit.NewSubscriber(), kit.NewSubscriber()
	var mended atomic.Bool
	consumer.AddHandler(router, "plain", "t", plain, handler(&mended))
	consumer.AddHandlerInBatches(router, "durable", "t", durable, handler(&mended))
	down := p.addBreaking(router)
	ended := make(chan error, 2)
	go func() { ended <- router.Run(context.WithoutCancel(p.Context())) }()
	<-router.Running()
	ctx, stop := context.WithCancel(context.WithoutCancel(p.Context()))
	go func() { ended <- consumer.Run(ctx) }()
	end = func() {
		p.Helper()
		stop()
		kit.Check(p, errors.Join(router.Close(), <-ended, <-ended))
	}

	for _, to := range []*kit.Subscriber{plain, durable} {
		for _, id := range []string{"fine", "fine", "again", "fails 1", "fails 2", "fails 3"} {
			p.deliver(to, event(id, ""))
		}
		p.deliver(to, message.NewMessage("fine", []byte("another body"))) // a collision
		redelivered := event("redelivered", "")
		redelivered.Metadata.Set("once_redelivered", "true")
		p.deliver(to, redelivered)
		p.deliver(to, event("fails with a key", "key"))
		p.deliver(to, event("waits for it", "key"))
		for _, version := range []int64{2, 1, 3} {
			msg := event("version "+string(rune('0'+version)), "")
			outbox.SetAggregate(msg, "account", "17", version)
			p.deliver(to, msg)
			if version == 2 {
				p.awaitNumber(1, `SELECT COUNT(*) FROM app.mine_parked WHERE early_since IS NOT NULL AND token IS NULL AND state = 'waiting'`)
			}
		}
		p.awaitNumber(0, `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'waiting'`)
	}
	p.awaitNumber(2*(3+1+1), `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'quarantined'`)
	p.awaitNumber(2, `SELECT COUNT(*) FROM app.mine_parked WHERE state = 'held'`)
	p.awaitNumber(2*6, `SELECT COUNT(*) FROM app.mine_inbox`)
	p.deliver(down, event("while the service is down", ""))
	p.awaitNumber(1, `SELECT COUNT(*) FROM app.mine_audit WHERE action = 'breaker.closed'`)
	mended.Store(true)
	return end
}

// addBreaking adds a handler with a limit, whose breaker opens at its first call. The first probe fails, and the second one closes it.
func (p *part) addBreaking(router *message.Router) *kit.Subscriber {
	p.Helper()
	consumer, err := once.NewConsumer(p.db, once.ConsumerConfig{
		Schema: tables,
		Retry: retry.Config{
			PollInterval: 10 * time.Millisecond, Breaker: &retry.Breaker{}, Limits: retry.Limits{PerSecond: 1000},
		},
	})
	p.must(err)
	var calls atomic.Int64
	down := kit.NewSubscriber()
	consumer.AddHandler(router, "breaking", "t", down,
		func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
			if calls.Add(1) <= 2 {
				return nil, retry.Unavailable(errors.New("the service is down"))
			}
			return nil, nil
		})
	return down
}
