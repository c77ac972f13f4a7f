package main

import (
	"context"
	"fmt"

	"github.com/watermill-once/once/rabbit"
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
