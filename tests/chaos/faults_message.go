package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

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
				s.one(writing).tell(order{Do: doWrite, Kind: oversized, Count: 2})
				return s.seen(ctx, name, dead, nil)
			},
		},
		{
			name: "oversized-header", about: "headers that the outbox does not take: the transaction is rolled back", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				refused := s.growing(func() int64 { return s.count(writing, "refused") })
				s.one(writing).tell(order{Do: doWrite, Kind: bloated, Count: 2})
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
			name: "collision", about: "messages from outside with the id of another one", on: onMessages,
			strike: func(ctx context.Context, s *strike) (string, error) {
				var id string
				// A recent event, because the inbox removes old ids.
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

// publish publishes messages to the ledger's queue without the outbox, and
// waits for the confirms. After a failure it publishes all again, because
// duplicates are harmless.
func (s *strike) publish(ctx context.Context, messages ...amqp.Publishing) error {
	var failure error
	err := s.until(ctx, "the broker takes messages", func() bool {
		failure = s.channel(func(channel *amqp.Channel) error {
			if err := channel.Confirm(false); err != nil {
				return err
			}
			for _, m := range messages {
				m.DeliveryMode = amqp.Persistent
				confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queueOf(ledger), true, false, m)
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

// duplicates publishes duplicates of the latest events, whether these have
// arrived or not.
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
	if err := s.publish(ctx, append(copies, copies...)...); err != nil {
		return "", err
	}
	// A consumer that does not skip them applies them twice.
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

// requeued consumes messages of the queue besides the consumers, and nacks
// them.
func requeued(ctx context.Context, s *strike) (string, error) {
	const name = "once.subscriber.delivered/redelivered"
	again := s.growing(func() int64 { return s.count(consuming, name) })
	taken := 0
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

// foreign publishes messages that must end in quarantine.
func (s *strike) foreign(ctx context.Context, reason string, like amqp.Publishing) (string, error) {
	name := "once.poison.quarantined/" + reason
	stored := s.growing(func() int64 { return s.count(consuming, name) })
	like.Body = s.outside.add(reason)
	if err := s.publish(ctx, like); err != nil {
		return "", err
	}
	return s.seen(ctx, name, stored, nil)
}
