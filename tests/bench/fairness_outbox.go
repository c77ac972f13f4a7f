package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// outboxFairness measures how long a few messages of one tenant take from their commit to
// their confirm: with an empty outbox, and while a million messages of another tenant
// wait in it. The forwarder gets no hints, as if it ran in a process of its own.
func (b *bench) outboxFairness(ctx context.Context) ([]row, error) {
	alone := series{
		id: "outbox-fair-alone", unit: milliseconds,
		what: fmt.Sprintf("%d messages of a tenant from commit to confirm, nothing waiting", fewMessages),
	}
	busy := series{
		id: "outbox-fair-busy", unit: milliseconds,
		what: fmt.Sprintf("the same while another tenant has %d in the outbox", b.backlog),
	}
	keyed := series{id: "outbox-fair-keys", unit: milliseconds, what: "the same, all with ordering keys"}
	err := b.turns(
		ctx,
		single(&alone, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, 0, 0) }),
		single(&busy, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, b.backlog, 0) }),
		single(&keyed, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, b.backlog, b.backlog/10) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{alone.row(), busy.againstAtMost(alone, 3), keyed.againstAtMost(alone, 3)}, nil
}

// fairOutbox returns the median time in milliseconds until the messages of the small
// tenant are confirmed. During the measurement, messages of the large tenant wait. The
// parameter keys is the number of ordering keys of these waiting messages.
func (b *bench) fairOutbox(ctx context.Context, waiting, keys int) (_ float64, err error) {
	s, err := b.newScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fillFor(ctx, many, waiting, keys); err != nil {
		return 0, err
	}
	publisher, err := newPublisher(s.queue.config(), s.queue.name)
	if err != nil {
		return 0, err
	}
	defer closing(publisher, &err)
	p := &fewCounted{Publisher: publisher, confirmed: make(chan error, fewMessages)}
	fwd, err := forwarder.New(s.db.DB, p, forwarder.Config{})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(ctx) }()
	took, err := s.probe(ctx, p, keys > 0, b.delivering)
	if err = errors.Join(err, fwd.Close(), <-ended); err != nil {
		return 0, err
	}
	var left bool
	err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM once_outbox)`).Scan(&left)
	const enough = 100_000 // a smaller backlog, as in tests, may end before the measurement
	if err == nil && !left && waiting >= enough {
		err = fmt.Errorf("%d messages should wait during the measurement, but none of them is left", waiting)
	}
	return quantile(took, 0.5), err
}

// probe writes a few messages of the small tenant in one transaction, and does this again
// and again. For each transaction it measures the time from the commit until all of its
// messages were confirmed. It returns these times in milliseconds, sorted. The first few
// times are not counted.
func (s *scene) probe(ctx context.Context, p *fewCounted, keyed bool, during time.Duration) (took []float64, err error) {
	const warmUp = 3
	for n, start := 0, time.Now(); n <= warmUp || time.Since(start) < during; n++ {
		if err := wait(ctx, time.Now().Add(rand.N(200*time.Millisecond))); err != nil {
			return nil, err
		}
		one, err := s.sendFew(ctx, p, keyed)
		if err != nil {
			return nil, err
		}
		if n >= warmUp {
			took = append(took, float64(one)/float64(time.Millisecond))
		}
	}
	slices.Sort(took)
	return took, nil
}

func (s *scene) sendFew(ctx context.Context, p *fewCounted, keyed bool) (time.Duration, error) {
	msgs := newMessages(fewMessages)
	for i, msg := range msgs {
		outbox.SetTenant(msg, few)
		if keyed {
			outbox.SetOrderingKey(msg, few+strconv.Itoa(i))
		}
	}
	if err := outbox.InTx(ctx, s.db.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(s.queue.name, msgs...)
	}); err != nil {
		return 0, err
	}
	start := time.Now()
	for range msgs {
		select {
		case err := <-p.confirmed:
			if err != nil {
				return 0, err
			}
		case <-time.After(patience):
			return 0, fmt.Errorf("%d messages were not confirmed within %v; %d of the other tenant were", fewMessages, patience, p.others.Load())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return time.Since(start), nil
}

// fewCounted is a publisher that sends the outcomes of the small tenant's messages to a
// channel, and counts the outcomes of the other messages.
type fewCounted struct {
	*rabbit.Publisher

	confirmed chan error
	others    atomic.Int64
}

func (p *fewCounted) PublishAsync(topic string, msg *message.Message, done func(error)) {
	isFew := msg.Metadata[outbox.TenantID] == few
	p.Publisher.PublishAsync(topic, msg, func(err error) {
		if isFew {
			p.confirmed <- err
		} else {
			p.others.Add(1)
		}
		done(err)
	})
}
