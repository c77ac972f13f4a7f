package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/forwarder/hint"
	"github.com/watermill-once/once/outbox"
)

const (
	perSecondCommits = 100
	committers       = 4
)

func (b *bench) latencies(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	quantiles := func(id, what string) []*series {
		what = fmt.Sprintf("commit to consumer at %d/s, %s, %s", perSecondCommits, what, kind)
		return []*series{
			{id: id + "-p50", what: what + ": p50", unit: milliseconds},
			{id: id + "-p99", what: what + ": p99", unit: milliseconds},
		}
	}
	hinted, polled := quantiles("latency-hint", "with a hint"), quantiles("latency-poll", "found by the poll")
	remote := quantiles("latency-remote-hint", "with a hint by UDP")
	pgx := quantiles("latency-pgx-hint", "pgx's driver, with a hint")
	err := b.turns(
		ctx,
		measurement{hinted, func(ctx context.Context) ([]float64, error) { return b.latency(ctx, kind, withPq, directly) }},
		measurement{pgx, func(ctx context.Context) ([]float64, error) { return b.latency(ctx, kind, withPgx, directly) }},
		measurement{remote, func(ctx context.Context) ([]float64, error) { return b.latency(ctx, kind, withPq, remotely) }},
		measurement{polled, func(ctx context.Context) ([]float64, error) { return b.latency(ctx, kind, withPq, nil) }},
	)
	if err != nil {
		return nil, err
	}
	return []row{
		hinted[0].atMost(limits[kind][0]), hinted[1].atMost(limits[kind][1]),
		pgx[0].atMost(limits[kind][0]), pgx[1].atMost(limits[kind][1]),
		remote[0].row(), remote[1].row(),
		polled[0].atMost(10), polled[1].atMost(25),
	}, nil
}

// limits contains, for each type of queue, the highest allowed median and 99th percentile
// of the time from commit to consumer, in milliseconds. They apply if the forwarder gets
// hints. The limits for quorum queues are higher, because a quorum queue writes a message
// to disk before it delivers it.
var limits = map[string][2]float64{"classic": {1.5, 5}, "quorum": {3, 15}}

// hinting is the type of a function that returns the functions hint and end. The
// producers call hint after each commit. The function end is called after the
// measurement.
type hinting func(f *forwarder.Forwarder) (hint func(), end func() error, err error)

func directly(f *forwarder.Forwarder) (hint func(), end func() error, err error) {
	return f.Hint, func() error { return nil }, nil
}

// remotely returns a function that sends a hint over the network, as a producer does if
// the forwarder runs in another process.
func remotely(f *forwarder.Forwarder) (call func(), end func() error, err error) {
	receiver, err := hint.Listen("127.0.0.1:0", f.Hint)
	if err != nil {
		return nil, nil, err
	}
	sender, err := hint.NewSender([]string{receiver.Addr().String()}, hint.Config{})
	if err != nil {
		return nil, nil, errors.Join(err, receiver.Close())
	}
	return sender.Hint, func() error { return errors.Join(sender.Close(), receiver.Close()) }, nil
}

// latency returns the median and the 99th percentile of the times from commit to arrival, in
// milliseconds.
func (b *bench) latency(ctx context.Context, kind string, pool func(s *scene) *sql.DB, hints hinting) (_ []float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return nil, err
	}
	defer closing(s, &err)
	db := pool(s)
	f, err := forward(db, s.queue.config(), s.queue.name, 0)
	if err != nil {
		return nil, err
	}
	defer closing(f, &err)
	warmUp := perSecondCommits // messages of one second, in which connections are opened
	trips := newTrips(warmUp + int(b.delivering.Seconds()*perSecondCommits))
	if hints != nil {
		call, end, failed := hints(f.fwd)
		if failed != nil {
			return nil, failed
		}
		defer func() { err = errors.Join(err, end()) }()
		trips.hints = append(trips.hints, call)
	}
	f.start(ctx)
	arrived, err := s.queue.consume(ctx, trips)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.commit(ctx, db, trips), <-arrived); err != nil {
		return nil, err
	}
	return trips.quantiles(warmUp, 0.5, 0.99), nil
}

// trips contains messages, and when each was committed and delivered.
type trips struct {
	msgs      []*message.Message
	number    map[string]int // index of a message, by id
	committed []time.Time
	delivered []time.Time
	hints     []func()
}

func newTrips(count int) *trips {
	j := &trips{
		msgs:      newMessages(count),
		number:    make(map[string]int, count),
		committed: make([]time.Time, count),
		delivered: make([]time.Time, count),
	}
	for n, msg := range j.msgs {
		j.number[msg.UUID] = n
	}
	return j
}

func (j *trips) quantiles(from int, shares ...float64) []float64 {
	var took []float64
	for n := from; n < len(j.msgs); n++ {
		took = append(took, float64(j.delivered[n].Sub(j.committed[n]))/float64(time.Millisecond))
	}
	slices.Sort(took)
	var found []float64
	for _, share := range shares {
		found = append(found, quantile(took, share))
	}
	return found
}

// quantile returns the smallest value that is at least as large as the given share of
// all values. The values in sorted must be in ascending order.
func quantile(sorted []float64, share float64) float64 {
	at := int(share * float64(len(sorted)))
	if float64(at) == share*float64(len(sorted)) {
		at--
	}
	return sorted[max(0, at)]
}

// commit commits each message in its own transaction, at a random moment. At regular
// moments, the commits could always fall shortly before or shortly after the polls of the
// forwarder.
func (s *scene) commit(ctx context.Context, db *sql.DB, j *trips) error {
	const pause = time.Second / perSecondCommits
	var (
		working sync.WaitGroup
		errs    [committers]error
	)
	start := time.Now()
	for worker := range committers {
		working.Go(func() {
			for n := worker; n < len(j.msgs) && errs[worker] == nil; n += committers {
				moment := time.Duration(n)*pause + rand.N(pause)
				if errs[worker] = wait(ctx, start.Add(moment)); errs[worker] == nil {
					errs[worker] = s.commitOne(ctx, db, j, n)
				}
			}
		})
	}
	working.Wait()
	return errors.Join(errs[:]...)
}

func (s *scene) commitOne(ctx context.Context, db *sql.DB, j *trips, n int) error {
	done := func() { j.committed[n] = time.Now() }
	return outbox.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(s.queue.name, j.msgs[n])
	}, append([]func(){done}, j.hints...)...)
}

func wait(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// consume starts a consumer. The returned channel receives nil when all messages have
// arrived, or an error.
func (q *queue) consume(ctx context.Context, j *trips) (<-chan error, error) {
	channel, err := q.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Qos(100, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, q.name, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	arrived := make(chan error, 1)
	go func() { arrived <- errors.Join(j.arrive(ctx, deliveries), channel.Close()) }()
	return arrived, nil
}

// patience is how long the consumer waits for the next delivery.
const patience = 30 * time.Second

func (j *trips) arrive(ctx context.Context, deliveries <-chan amqp.Delivery) error {
	for left := len(j.msgs); left > 0; {
		select {
		case delivery, ok := <-deliveries:
			now := time.Now()
			if !ok {
				return errors.Join(fmt.Errorf("the consumer ended before %d messages had arrived", left), ctx.Err())
			}
			if n, ok := j.number[delivery.MessageId]; ok && j.delivered[n].IsZero() {
				j.delivered[n] = now
				left--
			}
			if err := delivery.Ack(false); err != nil {
				return err
			}
		case <-time.After(patience):
			return fmt.Errorf("%d messages did not arrive within %v", left, patience)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
