package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// consumers compares the speed of several consumers that apply every message exactly
// once with the speed of a consumer without an inbox.
func (b *bench) consumers(ctx context.Context) ([]row, error) {
	all, few := b.consume, b.slow
	var (
		bare  = series{id: "consumer-bare", what: fmt.Sprintf("a transaction a message, %d in flight, no inbox, %s", inFlight, b.kinds[0])}
		hand  = series{id: "consumer-naive", what: "the same with an insert into a table of ids"}
		ours  = series{id: "consumer-once", what: "the same with once.Consumer"}
		lazy  = series{id: "consumer-lazytx", what: "the same again, BEGIN sent with the first statement by lazytx"}
		plain = series{id: "consumer-pgx-bare", what: "the transaction without an inbox, pgx's driver"}
		pgx   = series{id: "consumer-pgx", what: "the same with once.Consumer"}
		both  = series{id: "consumer-pgx-lazytx", what: "the same again, BEGIN sent with the first statement by lazytx"}
		two   = series{id: "consumer-sql-open", what: "once.Consumer with a pool as sql.Open makes it, which keeps two connections"}
		usual = series{id: "consumer-stock", what: "watermill-amqp's subscriber as it comes, with a table of ids"}
		best  = series{id: "consumer-default", what: "rabbit.Subscriber and once.Consumer as they come"}
		eight = series{id: "consumer-stock-8", what: fmt.Sprintf("the stock subscriber with %d subscriptions", inFlight)}
		limit = series{id: "consumer-pgbench", what: fmt.Sprintf("pgbench with the same transaction, %d clients", inFlight), unit: "tx/s"}
	)
	way := func(into *series, messages int, consume handlers, effects effects) measurement {
		into.unit = perSecond
		return single(into, func(ctx context.Context) (float64, error) { return b.consumed(ctx, messages, consume, effects) })
	}
	measurements := []measurement{
		way(&bare, all, apart, effects{orders: all}),
		way(&hand, all, naive, effects{orders: all, naive: all}),
		way(&ours, all, chain(rabbit.SubscriberConfig{InFlight: inFlight}), effects{orders: all, inbox: all}),
		way(&lazy, all, lazyChain(rabbit.SubscriberConfig{InFlight: inFlight}), effects{orders: all, inbox: all}),
		way(&plain, all, apartWithPgx, effects{orders: all}),
		way(&pgx, all, chainOn(withPgx, rabbit.SubscriberConfig{InFlight: inFlight}, handled), effects{orders: all, inbox: all}),
		way(&both, all, chainOn(withLazyPgx, rabbit.SubscriberConfig{InFlight: inFlight}, handled), effects{orders: all, inbox: all}),
		way(&two, few, chainOn(keepsTwo, rabbit.SubscriberConfig{InFlight: inFlight}, handled), effects{orders: few, inbox: few}),
		way(&usual, few, stock(1), effects{orders: few, naive: few}),
		way(&best, all, chain(rabbit.SubscriberConfig{}), effects{orders: all, inbox: all}),
		way(&eight, all, stock(inFlight), effects{orders: all, naive: all}),
	}
	program, found := findPgbench()
	if found {
		measurements = append(measurements, single(&limit, func(ctx context.Context) (float64, error) { return b.pgbench(ctx, program) }))
	} else {
		fmt.Fprintln(b.progress, "pgbench is neither on the PATH nor where PostgreSQL's packages put it: its rows are left out")
	}
	if err := b.turns(ctx, measurements...); err != nil {
		return nil, err
	}
	rows := []row{
		bare.row(),
		hand.against(bare, 0),
		ours.against(bare, 0),
		lazy.against(bare, 0.87),
		plain.row(),
		pgx.against(plain, 0),
		both.against(plain, 0.9),
		two.against(ours, 0),
		usual.row(),
		best.against(usual, 4),
	}
	if found {
		rows = append(rows,
			limit.row(),
			eight.against(limit, 0),
			ours.named("-per-pgbench", "once.Consumer, as above, against pgbench").against(limit, 0),
			lazy.named("-per-pgbench", "with lazytx, as above, against pgbench").against(limit, 0.45),
			pgx.named("-per-pgbench", "with pgx, as above, against pgbench").against(limit, 0),
			both.named("-per-pgbench", "with pgx and lazytx, as above, against pgbench").against(limit, 0.6))
	}
	return rows, nil
}

func (b *bench) duplicates(ctx context.Context) ([]row, error) {
	fresh := series{id: "duplicates-new", what: "once.Consumer as it comes, new messages, " + b.kinds[0], unit: perSecond}
	again := series{id: "duplicates-skipped", what: "the same with the same messages once more", unit: perSecond}
	err := b.turns(ctx, measurement{[]*series{&fresh, &again}, b.twice})
	if err != nil {
		return nil, err
	}
	return []row{fresh.row(), again.against(fresh, 1.2)}, nil
}

func (b *bench) twice(ctx context.Context) (rates []float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	defer closing(s, &err)
	messages := newMessages(b.consume)
	for range 2 {
		took, err := s.consume(ctx, messages, chain(rabbit.SubscriberConfig{}))
		if err != nil {
			return nil, err
		}
		if err := s.hasEffects(ctx, effects{orders: len(messages), inbox: len(messages)}); err != nil {
			return nil, err
		}
		rates = append(rates, rate(len(messages), took))
	}
	return rates, nil
}

// storedTogether is the number of messages that a durable consumer stores in one
// transaction.
const storedTogether = 500

func (b *bench) durables(ctx context.Context) ([]row, error) {
	var (
		direct  = series{id: "consume-direct", what: fmt.Sprintf("once.Consumer, %d in flight, %s", inFlight, b.kinds[0]), unit: perSecond}
		durable = series{id: "consume-durable", what: "the same through the durable inbox", unit: perSecond}
		raw     = series{id: "store-raw", what: fmt.Sprintf("raw inserts of %d rows", storedTogether), unit: perSecond}
		stores  = series{id: "store-inbox", what: "the same messages stored in the durable inbox", unit: perSecond}
		done    = effects{orders: b.consume, inbox: b.consume}
	)
	err := b.turns(
		ctx,
		single(&direct, func(ctx context.Context) (float64, error) {
			return b.consumed(ctx, b.consume, chain(rabbit.SubscriberConfig{InFlight: inFlight}), done)
		}),
		single(&durable, func(ctx context.Context) (float64, error) { return b.consumed(ctx, b.consume, storedFirst, done) }),
		single(&raw, func(ctx context.Context) (float64, error) { return b.storeRaw(ctx, b.messages) }),
		single(&stores, func(ctx context.Context) (float64, error) { return b.storeInbox(ctx, b.messages) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{direct.row(), durable.against(direct, 0.95), raw.row(), stores.against(raw, 0.7)}, nil
}

func storedFirst(s *scene, router *message.Router) error {
	// While one batch is stored, the next one is collected.
	subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: 2 * storedTogether})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(s.db.DB, once.ConsumerConfig{
		DurableConsumers: []string{consumerName},
		Retry:            retry.Config{Concurrency: inFlight},
	})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handled)
	return nil
}

// The metadata field that marks messages whose handler fails, and its values.
const (
	poisonHeader = "poison"
	hopeless     = "hopeless" // fails permanently, and goes to quarantine
	failing      = "failing"  // always fails, and is parked after its immediate attempts
)

var errPoison = errors.New("this message always fails")

func (b *bench) poisons(ctx context.Context) ([]row, error) {
	none := series{id: "poison-none", what: "once.Consumer as it comes, " + b.kinds[0], unit: perSecond}
	some := series{id: "poison-1", what: "the same, 1 % of the messages always fail", unit: perSecond}
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.poisoned(ctx, 0) }),
		single(&some, func(ctx context.Context) (float64, error) { return b.poisoned(ctx, max(2, b.consume/100)) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), some.against(none, 0.85)}, nil
}

// poisoned measures a consumer while messages fail. poison is the number of
// failing messages: half of them are marked hopeless, and half are marked failing. They
// are spread evenly among the other messages.
func (b *bench) poisoned(ctx context.Context, poison int) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	messages := newMessages(b.consume)
	for n := range poison {
		messages[n*len(messages)/poison].Metadata[poisonHeader] = []string{hopeless, failing}[n%2]
	}
	took, err := s.consume(ctx, messages, chainWith(rabbit.SubscriberConfig{}, poisonable))
	if err != nil {
		return 0, err
	}
	good := len(messages) - poison
	return rate(len(messages), took), s.hasEffects(ctx,
		effects{orders: good, inbox: good, quarantined: (poison + 1) / 2, waiting: poison / 2})
}

// poisonable is a handler that writes, and then fails if the message is marked.
func poisonable(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	err := business(ctx, tx)
	switch {
	case err != nil:
		return nil, err
	case msg.Metadata[poisonHeader] == hopeless:
		return nil, retry.Permanent(errPoison)
	case msg.Metadata[poisonHeader] == failing:
		return nil, errPoison
	}
	return nil, nil
}

// processor contains the processor time that processes have used since their start.
type processor struct {
	postgres time.Duration // by the server's processes for one database
	own      time.Duration // by this process
}

func (p processor) minus(q processor) processor {
	return processor{p.postgres - q.postgres, p.own - q.own}
}

func (p processor) plus(q processor) processor {
	return processor{p.postgres + q.postgres, p.own + q.own}
}

// processor returns the processor time of the sessions in the database, and of this
// process. The result ok is false if PostgreSQL runs on another host, or the system has
// no /proc.
func (d *database) processor(ctx context.Context) (used processor, ok bool, err error) {
	rows, err := d.admin.QueryContext(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'`, d.name)
	if err != nil {
		return used, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return used, false, err
		}
		one, ok := timeOf(pid)
		if !ok {
			return used, false, nil
		}
		used.postgres += one
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return used, false, err
	}
	used.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return used, true, rows.Err()
}

func timeOf(pid int) (time.Duration, bool) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "postgres") {
		return 0, false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid)) // schedstat counts nanoseconds, but stat only hundredths of a second
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(stat), " ")
	nanoseconds, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(nanoseconds), err == nil
}
