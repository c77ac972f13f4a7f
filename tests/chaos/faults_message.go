package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
)

const onMessages = "messages"

func messageFaults() []fault {
	return []fault{
		{
			name: "duplicates", about: "copies of events are published past the outbox, twice", on: onMessages,
			strike: duplicates,
		},
		{
			name: "requeued", about: "messages are taken from the queue and given back, in reverse", on: onMessages,
			strike: requeued,
		},
		{
			name: "oversized-body", about: "bodies that RabbitMQ does not take: they become dead letters", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				const name = "once.forwarder.dead/unacceptable"
				dead := s.growing(func() int64 { return s.count(forwarding, name) })
				s.pick(writing).tell(order{Do: doWrite, Kind: oversized, Count: 2})
				return s.seen(ctx, name, dead, nil)
			},
		},
		{
			name: "oversized-header", about: "headers that the outbox does not take: the transaction is rolled back", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				refused := s.growing(func() int64 { return s.count(writing, "refused") })
				s.pick(writing).tell(order{Do: doWrite, Kind: bloated, Count: 2})
				return s.seen(ctx, "refused", refused, nil)
			},
		},
		{
			name: "undecodable", about: "messages from outside that the marshaler cannot read", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.foreign(ctx, poison.ReasonUndecodable, amqp.Publishing{MessageId: fmt.Sprint("outside-", s.Uint64()), ContentType: unreadable})
			},
		},
		{
			name: "without-id", about: "messages from outside that have no id", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.foreign(ctx, poison.ReasonInvalidID, amqp.Publishing{})
			},
		},
		{
			name: "steering-headers", on: onMessages, strike: steered,
			about: "messages from outside tell the outbox where and when to send what their handler publishes",
		},
		{
			name: "collision", about: "messages from outside with the id of another one", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				var id string
				// The event must be recent, because the inbox removes old ids.
				err := s.until(ctx, "an event took effect", func() bool {
					return s.db.QueryRowContext(ctx, `
						SELECT message_id FROM once_inbox WHERE consumer = $1 ORDER BY processed_at DESC LIMIT 1 OFFSET $2`,
						ledger, s.IntN(50)).Scan(&id) == nil
				})
				if err != nil {
					return "", err
				}
				return s.foreign(ctx, poison.ReasonCollision, amqp.Publishing{MessageId: id})
			},
		},
	}
}

// publish publishes messages directly to the queue of a topic, and waits for the
// confirms. If this fails, publish tries again with all messages, because duplicates are
// harmless.
func (s *strike) publish(ctx context.Context, topic string, messages ...amqp.Publishing) error {
	var failure error
	err := s.until(ctx, "the broker takes messages", func() bool {
		failure = s.channel(func(channel *amqp.Channel) error {
			if err := channel.Confirm(false); err != nil {
				return err
			}
			for _, m := range messages {
				m.DeliveryMode = amqp.Persistent
				confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queueOf(topic), true, false, m)
				if err != nil {
					return err
				}
				if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
					return errors.Join(err, errors.New("not confirmed"))
				}
			}
			return nil
		})
		return failure == nil
	})
	return errors.Join(err, failure)
}

// duplicates publishes copies of the latest events. The copies may arrive before the
// originals.
func duplicates(ctx context.Context, s *strike) (string, error) {
	const name = "once.dedup.handled/duplicate"
	skipped := s.growing(func() int64 { return s.count(consuming, name) })
	var copies []amqp.Publishing
	if err := s.until(ctx, "there are events", func() (done bool) {
		copies, _ = s.latest(ctx, 50)
		return len(copies) > 0
	}); err != nil {
		return "", err
	}
	if err := s.publish(ctx, ledger, append(copies, copies...)...); err != nil {
		return "", err
	}
	// The query counts events that were applied twice. If a consumer does not skip duplicates, this
	// count grows, which is also an effect of the fault.
	const doubled = `SELECT COUNT(*) FROM (SELECT FROM effects GROUP BY message_id HAVING COUNT(*) > 1) AS d`
	err := s.until(ctx, name, func() bool { return skipped() > 0 || s.number(ctx, doubled) > 0 })
	return fmt.Sprintf("%d events were sent twice more, %d times %s", len(copies), skipped(), name), err
}

func (s *strike) latest(ctx context.Context, n int) (copies []amqp.Publishing, err error) {
	rows, err := s.db.QueryContext(ctx, `
		SELECT message_id, number, ordering_key FROM business WHERE topic = $1 AND kind = $2 ORDER BY serial DESC LIMIT $3`, ledger, plain, n)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		e := event{kind: plain}
		if err := rows.Scan(&e.id, &e.number, &e.key); err != nil {
			return nil, err
		}
		publishing, err := rabbit.Marshaler{}.Marshal(e.message())
		if err != nil {
			return nil, err
		}
		copies = append(copies, publishing)
	}
	return copies, rows.Err()
}

// burst makes a writer commit more events than the consumers take at once, so that some
// stay in the queue.
func (s *strike) burst() {
	writer := s.pick(writing)
	for range 8 {
		writer.tell(order{Do: doWrite, Kind: plain, Count: 100})
	}
}

// requeued takes messages from the consumers' queue and nacks them in reverse order, so
// that the broker redelivers them.
func requeued(ctx context.Context, s *strike) (string, error) {
	const name = "once.subscriber.delivered/redelivered"
	again := s.growing(func() int64 { return s.count(consuming, name) })
	taken := 0
	s.burst()
	err := s.until(ctx, name, func() bool {
		_ = s.channel(func(channel *amqp.Channel) error {
			var tags []uint64
			for range 50 {
				d, ok, err := channel.Get(queueOf(ledger), false)
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				tags = append(tags, d.DeliveryTag)
			}
			for i := range tags {
				if err := channel.Nack(tags[len(tags)-1-i], false, true); err != nil {
					return err
				}
			}
			taken += len(tags)
			return nil
		})
		return taken > 0 && again() > 0
	})
	return fmt.Sprintf("%d messages were given back, %d came again", taken, again()), err
}

// steered publishes an event directly to the broker. Its headers name another topic and a
// due time in the far future. The handler copies the headers to the message that it
// returns, but they must not take effect there: the message must arrive at once. After
// the event has been applied, steered also commits the event to the outbox. It then
// arrives again, as a duplicate.
func steered(ctx context.Context, s *strike) (string, error) {
	e := event{kind: plain}
	for e.id == "" || !echoes(ledger, plain, e.id) {
		e.id = fmt.Sprintf("steered-%d", s.Uint64())
	}
	copied, err := rabbit.Marshaler{}.Marshal(e.message())
	if err != nil {
		return "", err
	}
	copied.Headers[outbox.Topic] = "elsewhere"
	copied.Headers[outbox.DueAt] = "9999-12-31T00:00:00Z"
	if err := s.publish(ctx, ledger, copied); err != nil {
		return "", err
	}
	if err := s.applied(ctx, e.id); err != nil {
		return "", err
	}
	if err := s.write(ctx, e); err != nil {
		return "", err
	}
	return "the handler's message arrived", s.applied(ctx, echo(e.id))
}

func (s *strike) applied(ctx context.Context, id string) error {
	return s.until(ctx, "the effect of "+id, func() bool {
		return s.number(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = $1`, id) > 0
	})
}

// foreign publishes a message directly to the broker, and waits until it is in quarantine
// for the given reason. like contains the properties of the message.
func (s *strike) foreign(ctx context.Context, reason string, like amqp.Publishing) (string, error) {
	name := "once.poison.quarantined/" + reason
	stored := s.growing(func() int64 { return s.count(consuming, name) })
	like.Body = s.outside.add(reason)
	if err := s.publish(ctx, ledger, like); err != nil {
		return "", err
	}
	return s.seen(ctx, name, stored, nil)
}
