package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// publisherAlone measures rabbit.Publisher without forwarder and database.
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

	var (
		failure atomic.Pointer[error]
		settled sync.WaitGroup
	)
	settled.Add(messages)
	start := time.Now()
	for _, msg := range msgs {
		p.PublishAsync(q.name, msg, func(err error) {
			if err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			settled.Done()
		})
	}
	settled.Wait()
	took := time.Since(start)
	if failed := failure.Load(); failed != nil {
		return 0, errors.Join(*failed, ctx.Err())
	}
	return rate(messages, took), q.holds(ctx, messages+1)
}
