package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

const (
	crashBudget   = 2
	consumerLease = 2 * time.Second
	consumerPool  = 32

	// retention is how long the inbox keeps an id. It is longer than any fault can delay a
	// duplicate.
	retention = 15 * time.Minute
)

// consumer handles the messages of all topics of the first service, with all middlewares
// of the library.
type consumer struct {
	*actor

	db *sql.DB
}

func (a *actor) consume(ctx context.Context, db *sql.DB) error {
	db.SetMaxOpenConns(consumerPool)
	db.SetMaxIdleConns(consumerPool)
	c := &consumer{actor: a, db: db}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, newLog(a.Name))
	if err != nil {
		return err
	}
	run := func(context.Context) error { return nil }
	if a.planted(plantInbox) {
		err = c.addNaively(router)
	} else {
		run, err = c.add(router)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.obey(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	err = router.Run(ctx)
	if !router.IsRunning() && errors.Is(err, context.Canceled) { // told to end before all handlers had subscribed
		err = nil
	}
	cancel() // for example, the process has no rights at the start
	return errors.Join(err, <-ended)
}

// versionWindow is how long a version waits for missing earlier versions. It is shorter
// than the time after which the run gives up waiting for the last messages, so held
// versions are finished before.
const versionWindow = 2 * time.Minute

// inboxLockTimeout is how long a duplicate waits for the transaction that inserted the
// same id into the inbox. It must be shorter than the lock_timeout of the connections.
const inboxLockTimeout = 500 * time.Millisecond

func (c *consumer) add(router *message.Router) (run func(context.Context) error, err error) {
	config := once.ConsumerConfig{
		Dedup: dedup.Config{
			Retention: retention, MaxDuplicateAge: retention, SweepInterval: time.Second, LockTimeout: inboxLockTimeout,
		},
		Retry: retry.Config{
			Policy:      retry.Policy{Immediate: 1, Delayed: 2, Base: 100 * time.Millisecond},
			CrashBudget: crashBudget, Lease: consumerLease, PollInterval: c.Poll,
		},
		DurableConsumers: []string{notices}, // with a breaker
		Logger:           newLog(c.Name),
		MeterProvider:    c.tally.meters,
	}
	chain, err := once.NewConsumer(c.db, config)
	if err != nil {
		return nil, err
	}
	config.Retry.Breaker = &retry.Breaker{MaxWait: time.Second}
	stored, err := once.NewConsumer(c.db, config)
	if err != nil {
		return nil, err
	}
	config.DurableConsumers, config.Retry.Breaker = nil, nil
	config.Sequence = &sequence.Config{Policy: sequence.HoldForGap, Window: versionWindow}
	if c.planted(plantLate) {
		config.Sequence.OnStale = func(context.Context, *sql.Tx, sequence.Gap, *message.Message) error { return nil }
	}
	config.Dedup.Key = func(msg *message.Message) string { return cmp.Or(msg.Metadata.Get(headerRequest), msg.UUID) }
	config.Dedup.Content = func(msg *message.Message) []byte { return []byte(msg.Metadata.Get(headerRequest)) }
	strict, err := once.NewConsumer(c.db, config)
	if err != nil {
		return nil, err
	}
	direct, err := c.subscriber(8)
	if err != nil {
		return nil, err
	}
	durable, err := c.subscriber(100)
	if err != nil {
		return nil, err
	}
	versions, err := c.subscriber(8)
	if err != nil {
		return nil, err
	}
	answers, err := c.subscriber(8)
	if err != nil {
		return nil, err
	}
	chain.AddHandler(router, replies, replies, answers, c.handler(replies))
	chain.AddHandler(router, ledger, ledger, direct, c.handler(ledger))
	stored.AddHandlerInBatches(router, notices, notices, durable, c.handler(notices))
	// The router runs the sweep for this handler, so the method Run of strict need not be
	// called.
	strict.AddHandler(router, accounts, accounts, versions, c.handler(accounts))
	return chain.Run, nil
}

func (c *consumer) subscriber(inFlight int) (message.Subscriber, error) {
	config := exchanges(c.AMQP, c.Quorum)
	config.Marshaler = picky{}
	return rabbit.NewSubscriber(config, rabbit.SubscriberConfig{
		Nodes:         c.Nodes,
		InFlight:      inFlight,
		NackMax:       2 * time.Second,
		ReadyTimeout:  500 * time.Millisecond,
		CloseTimeout:  10 * time.Second,
		DialTimeout:   5 * time.Second,
		WriteTimeout:  3 * time.Second,
		MeterProvider: c.tally.meters,
		Logger:        newLog(c.Name),
	})
}

// picky is a marshaler that cannot decode some messages.
type picky struct{ rabbit.Marshaler }

const unreadable = "application/unreadable"

func (p picky) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.ContentType == unreadable {
		return nil, fmt.Errorf("content type %s", d.ContentType)
	}
	return p.Marshaler.Unmarshal(d)
}

// doHog makes a consumer take all connections of its own pool for a while.
const doHog = "hog"

func (c *consumer) obey(ctx context.Context) {
	for {
		select {
		case o := <-c.orders:
			if o.Do == doHog {
				c.hog(ctx, o.For)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *consumer) hog(ctx context.Context, d time.Duration) {
	waited := c.db.Stats().WaitCount
	var taken []*sql.Conn
	for range consumerPool {
		conn, err := c.db.Conn(ctx)
		if err != nil {
			break
		}
		taken = append(taken, conn)
	}
	rest(ctx, d)
	for _, conn := range taken {
		_ = conn.Close()
	}
	if len(taken) == consumerPool {
		c.tally.add("waited", c.db.Stats().WaitCount-waited)
	}
}
