package failpoints

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// Topics. Each topic has a consumer of the same name.
const (
	orders = "orders"
	done   = "done" // events that say that an order was handled
)

const (
	key = "key"

	crashBudget = 2
	lease       = time.Second
)

func (a *actor) chain() (*once.Consumer, error) {
	config := once.ConsumerConfig{
		Schema: a.schema(),
		Retry: retry.Config{
			Policy:      retry.Policy{Immediate: 1, Delayed: 2, Base: 5 * time.Millisecond},
			CrashBudget: crashBudget, Concurrency: 4, Lease: lease, PollInterval: 50 * time.Millisecond,
		},
		Dedup: dedup.Config{SweepInterval: time.Second, Batch: dedup.Batch{Wait: 50 * time.Millisecond}},
	}
	if a.Outage {
		config.Retry.Breaker = &retry.Breaker{Failures: 2, MaxWait: 100 * time.Millisecond}
		config.Retry.Policy.Base = time.Second // so that no message is given up on before the breaker opens
	}
	if a.Limited {
		config.Retry.Limits = retry.Limits{PerSecond: 20, Burst: 1}
	}
	if a.Frozen {
		config.Dedup.IdleTimeout = 5 * time.Second
	}
	if a.Keyed {
		config.Retry.KeyOrder = retry.BlockWhileRetried
	}
	if a.Versions {
		config.Sequence = &sequence.Config{Policy: sequence.HoldForGap}
	}
	if a.Durable {
		config.DurableConsumers = []string{orders}
		config.Durable = durable.Config{BatchWait: 20 * time.Millisecond, KeepHandled: 200 * time.Millisecond}
	}
	return once.NewConsumer(a.db, config)
}

// consume starts the consumers, and returns when all of them have subscribed.
func (a *actor) consume(ctx context.Context, start func(func(ctx context.Context) error)) error {
	if a.NoConsumer {
		return nil
	}
	c, err := a.chain()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, nopLogger)
	if err != nil {
		return err
	}
	add := c.AddHandler
	if a.Batches {
		add = c.AddHandlerInBatches
	}
	for topic, handle := range map[string]once.HandlerFunc{orders: a.order, done: a.apply} {
		sub, err := a.subscriber()
		if err != nil {
			return err
		}
		add(router, topic, topic, sub, handle)
	}
	start(c.Run)
	start(router.Run)
	select {
	case <-router.Running():
	case <-ctx.Done(): // the transport cannot deliver the message now
	}
	return nil
}

func (a *actor) subscriber() (message.Subscriber, error) {
	if a.transport != nil {
		return a.transport.Subscriber(), nil
	}
	config := rabbit.SubscriberConfig{InFlight: 2, NackMin: time.Millisecond, NackMax: 10 * time.Millisecond}
	if a.Batches {
		config.InFlight = 0 // 0 means the number that a batch needs
	}
	return rabbit.NewSubscriber(a.exchanges(), config)
}

// order handles an order, and publishes an event. It fails if the configuration of the process
// requires it.
func (a *actor) order(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	delivery := parkedrows.DeliveryOf(ctx)
	attempts := 0
	if delivery.Claim != nil {
		attempts = delivery.Claim.Attempts
	}
	switch {
	case msg.UUID == a.Exits:
		return nil, a.exit(ctx, msg)
	case a.Stops:
		return nil, a.interrupted(ctx, delivery)
	case a.Blocks && delivery.Claim != nil:
		<-delivery.Closing
	case attempts < a.Fails && (a.FailsFor == "" || a.FailsFor == msg.UUID):
		return nil, errors.New("the handler fails")
	case a.Outage:
		if err := a.outage(ctx, tx); err != nil {
			return nil, err
		}
	}
	_, err := a.apply(ctx, tx, msg)
	return []*message.Message{once.To(done, message.NewMessage(msg.UUID+"-done", nil))}, err
}

// outage fails until a probe of the breaker has failed. If the breaker is open only for this
// instance, because a dead one still counts as running, no row shows its probes.
func (a *actor) outage(ctx context.Context, tx *sql.Tx) error {
	const enough = 12
	var over bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM once_consumer_pauses WHERE probes > 0)
		OR EXISTS (SELECT 1 FROM once_audit WHERE action = 'breaker.closed')`).Scan(&over)
	if err == nil && !over && a.calls.Add(1) < enough {
		err = errors.New("the service is down")
	}
	return err
}

// exit waits until the forwarder sends no more duplicates of the message, and then ends the
// process. A duplicate that the broker has never delivered would look like a new message. If the
// messages have no ordering key, exit also waits until the other messages are handled. Otherwise a
// message that is in flight at each of these deaths would go to quarantine, too.
func (a *actor) exit(ctx context.Context, msg *message.Message) error {
	if err := a.wait(ctx, `SELECT COUNT(*) FROM once_outbox WHERE message_id = $1`, msg.UUID, 0, 1); err != nil {
		return err
	}
	if !a.Keyed {
		if err := a.wait(ctx, `SELECT COUNT(*) FROM effects WHERE message_id LIKE $1`, "m_", len(a.Writes)-1, 1); err != nil {
			return err
		}
	}
	os.Exit(exitStatus)
	return nil
}

// interrupted waits until the outbox is empty, and tells the process to end. It returns
// when the consumer closes.
func (a *actor) interrupted(ctx context.Context, delivery *parkedrows.Delivery) error {
	if err := a.wait(ctx, `SELECT COUNT(*) FROM once_outbox WHERE topic <> $1`, done, 0, 5); err != nil {
		return err
	}
	a.stop()
	<-delivery.Closing
	return errors.New("the handler is interrupted")
}

// wait waits until a query that counts returns the wanted number in several consecutive
// calls.
func (a *actor) wait(ctx context.Context, query, arg string, want, looks int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for seen := 0; seen < looks; <-tick.C {
		var n int
		if err := a.db.QueryRowContext(ctx, query, arg).Scan(&n); err != nil {
			return err
		}
		seen++
		if n != want {
			seen = 0
		}
	}
	return nil
}

func (a *actor) apply(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
	return nil, err
}
