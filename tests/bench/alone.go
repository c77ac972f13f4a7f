package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/rabbit"
)

// publisherAlone measures rabbit.Publisher without a forwarder and a database.
func (b *bench) publisherAlone(ctx context.Context, kind string, messages int) (_ float64, err error) {
	q, err := newQueue(b.amqpURL, kind)
	if err != nil {
		return 0, err
	}
	defer closing(q, &err)
	p, err := newPublisher(q.config(), q.name)
	if err != nil {
		return 0, err
	}
	defer closing(p, &err)
	msgs := newMessages(messages)

	start := time.Now()
	if err := publishAll(p, q.name, msgs); err != nil {
		return 0, errors.Join(err, ctx.Err())
	}
	took := time.Since(start)
	return rate(messages, took), q.awaitMessages(ctx, messages+1)
}

// publishAll publishes messages, and waits until each of them was confirmed or refused.
// It returns the first error.
func publishAll(p *rabbit.Publisher, topic string, messages []*message.Message) error {
	var (
		failure atomic.Pointer[error]
		settled sync.WaitGroup
	)
	settled.Add(len(messages))
	for _, msg := range messages {
		p.PublishAsync(topic, msg, func(err error) {
			if err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			settled.Done()
		})
	}
	settled.Wait()
	if failed := failure.Load(); failed != nil {
		return *failed
	}
	return nil
}
