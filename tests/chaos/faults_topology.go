package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// topologyFaults returns the faults that delete a queue, a binding or an exchange. Only
// those of the topic notices are deleted, and the queue only while it is empty, because
// no library can save messages in a deleted queue. Consumers declare a missing queue
// again when the broker notifies them. They declare missing bindings and exchanges when
// they restart.
func topologyFaults() []fault {
	return []fault{
		{
			name: "queue-deleted", about: "a consumer's queue is deleted; the consumer is told, and declares it", on: onBroker, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				cancelled := s.growing(sum(s.proxies(s.amqp), amqpCancel))
				err := s.quiet(ctx, func(channel *amqp.Channel) error {
					_, err := channel.QueueDelete(queueOf(notices), false, true, false)
					return err
				})
				proof, err := s.seen(ctx, amqpCancel, cancelled, err)
				return proof, errors.Join(err, s.rabbit.WriteDefinitions(ctx))
			},
		},
		{
			name: "exchange-deleted", about: "the exchange is deleted; the forwarder declares it, a new consumer binds", on: onBroker, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.unbound(ctx, func(channel *amqp.Channel) error { return channel.ExchangeDelete(notices, false, false) })
			},
		},
		{
			name: "binding-deleted", about: "the queue is unbound; a new consumer binds", on: onBroker, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.unbound(ctx, func(channel *amqp.Channel) error { return channel.QueueUnbind(queueOf(notices), "", notices, nil) })
			},
		},
	}
}

// unbound deletes a binding or an exchange with the function remove, and waits until
// the broker returns messages as unroutable. Then it restarts the consumers, which
// declare missing bindings and exchanges.
func (s *strike) unbound(ctx context.Context, remove func(channel *amqp.Channel) error) (proof string, err error) {
	returned := s.growing(sum(s.proxies(s.amqp), amqpReturn))
	defer func() {
		for _, m := range s.membersOf(consuming) {
			m.renew()
		}
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, s.until(ctx, "nothing is unroutable any more", func() bool {
			return s.number(ctx, `SELECT COUNT(*) FROM once_outbox WHERE topic = $1 AND attempts > 0`, notices) == 0
		}), s.rabbit.WriteDefinitions(ctx))
	}()
	if err := s.channel(remove); err != nil {
		return "", fmt.Errorf("deleting: %w", err)
	}
	return s.seen(ctx, amqpReturn, returned, nil)
}
