package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const onBroker = "RabbitMQ"

func brokerFaults() []fault {
	return []fault{
		{
			name: "broker-kill", about: "SIGKILL of RabbitMQ", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				if err := s.rabbit.WriteDefinitions(ctx); err != nil {
					return "", err
				}
				return s.outage(ctx, s.rabbit.Kill, s.rabbit.Restart)
			},
		},
		{
			name: "broker-restart", about: "RabbitMQ is stopped in good order, and started", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.outage(ctx, s.rabbit.Stop, s.rabbit.Restart)
			},
		},
		{
			name: "broker-freeze", about: "SIGSTOP of RabbitMQ until messages are given up as unknown, then SIGCONT", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				s.rabbit.Freeze()
				defer s.rabbit.Thaw()
				return s.unknown(ctx)
			},
		},
		{
			name: "memory-alarm", about: "RabbitMQ is short of memory and blocks those who publish", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.alarm(ctx, "set_vm_memory_high_watermark absolute 1", "set_vm_memory_high_watermark 0.8")
			},
		},
		{
			name: "disk-alarm", about: "RabbitMQ is short of disk and blocks those who publish", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.alarm(ctx, "set_disk_free_limit 100000GB", "set_disk_free_limit 1MB")
			},
		},
		{
			name: "password-changed", about: "the processes' password at RabbitMQ is changed, and their connections are closed", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.shutOut(ctx, "change_password "+user+" another", "change_password "+user+" "+password)
			},
		},
		{
			name: "permissions-revoked", about: "the processes may do nothing any more at RabbitMQ, and their connections are closed", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.shutOut(ctx, "set_permissions "+user+" ^$ ^$ ^$", "set_permissions "+user+" .* .* .*")
			},
		},
		{
			name: "connections-closed", about: "an operator closes all connections at RabbitMQ", on: onBroker,
			strike: func(ctx context.Context, s *strike) (string, error) {
				closed := s.growing(sum(s.proxies(s.amqp), amqpConnectionClose))
				err := s.ctl(ctx, "close_all_connections maintenance")
				return s.seen(ctx, amqpConnectionClose, closed, err)
			},
		},
		{
			name: "queue-full", about: "queues that refuse what they have no room for", on: onBroker, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				nacked := s.growing(sum(s.proxies(s.amqp), amqpNack))
				_, err := s.rabbit.Ctl(ctx, "set_policy", "full", "^"+ledger, `{"max-length":1}`, "--apply-to", "queues")
				s.burst()
				defer func() { err = errors.Join(err, s.ctl(context.WithoutCancel(ctx), "clear_policy full")) }()
				return s.seen(ctx, amqpNack, nacked, err)
			},
		},
		{
			name: "consumer-timeout", about: "handlers take longer than RabbitMQ waits for an ack", on: onBroker, alone: true,
			strike: consumerTimeout,
		},
	}
}

// seen waits until a count has increased, and returns the increase as the proof.
// name is the name of the count, and the function grown returns the increase so
// far. If err is not nil, seen does not wait for an increase, and returns
// err.
func (s *strike) seen(ctx context.Context, name string, grown func() int64, err error) (string, error) {
	if err == nil {
		err = s.until(ctx, name, func() bool { return grown() > 0 })
	}
	s.hold(ctx)
	return fmt.Sprintf("%d times %s", grown(), name), err
}

func (s *strike) unknown(ctx context.Context) (string, error) {
	const name = "once.forwarder.published/unknown"
	grown := s.growing(func() int64 { return s.count(forwarding, name) })
	return s.seen(ctx, name, grown, nil)
}

func (s *strike) alarm(ctx context.Context, raise, end string) (proof string, err error) {
	blocked := s.growing(sum(s.proxies(s.amqp), amqpBlocked))
	defer func() { err = errors.Join(err, s.ctl(context.WithoutCancel(ctx), end)) }()
	return s.seen(ctx, amqpBlocked, blocked, s.ctl(ctx, raise))
}

func (s *strike) shutOut(ctx context.Context, revoke, grant string) (proof string, err error) {
	defer func() { err = errors.Join(err, s.ctl(context.WithoutCancel(ctx), grant)) }()
	if err := errors.Join(s.ctl(ctx, revoke), s.ctl(ctx, "close_all_connections revoked")); err != nil {
		return "", err
	}
	// Failed connects are counted, too, because after a wrong password RabbitMQ closes the
	// connection without a message that the proxies could count.
	refused := s.growing(func() int64 {
		return s.count(forwarding, "once.rabbit.connects/failed") + sum(s.proxies(s.amqp), amqpChannelClose)()
	})
	return s.seen(ctx, "access refused", refused, nil)
}

// consumerTimeout gives the broker a very short consumer timeout. This timeout applies
// only to new channels, so the consumers are restarted. RabbitMQ closes the channel of a
// late consumer. Since RabbitMQ 4.3, a quorum queue cancels the consumer instead.
func consumerTimeout(ctx context.Context, s *strike) (proof string, err error) {
	set := func(timeout time.Duration, tick time.Duration) error {
		return s.eval(context.WithoutCancel(ctx), fmt.Sprintf(
			"application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, channel_tick_interval, %d)",
			timeout.Milliseconds(), tick.Milliseconds()))
	}
	defer func() {
		err = errors.Join(err, set(30*time.Minute, time.Minute))
		for _, m := range s.membersOf(consuming) {
			m.renew()
		}
	}()
	if err := set(time.Second, 500*time.Millisecond); err != nil {
		return "", err
	}
	for _, m := range s.membersOf(consuming) {
		m.renew()
	}
	closed, cancelled := sum(s.proxies(s.amqp), amqpChannelClose), sum(s.proxies(s.amqp), amqpCancel)
	ended := s.growing(func() int64 { return closed() + cancelled() })
	s.pick(writing).tell(order{Do: doWrite, Kind: slow, Count: 4})
	return s.seen(ctx, "consumer ended", ended, nil)
}

// quiet pauses the writers, waits until all messages are finished, and then calls the
// function do.
func (s *strike) quiet(ctx context.Context, do func(channel *amqp.Channel) error) error {
	s.load.hold(1)
	defer s.load.hold(-1)
	if err := s.until(ctx, "nothing is under way", func() bool { return s.idle(ctx) }); err != nil {
		return err
	}
	return s.channel(do)
}

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
					// RabbitMQ refuses to delete a quorum queue only if it is empty. But it
					// is empty, because nothing is under way.
					_, err := channel.QueueDelete(queueOf(notices), false, !s.quorum, false)
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
