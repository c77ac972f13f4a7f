package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// Deliver stores messages for each of the consumers, due at once, in one
// transaction. A copy that a consumer has already is passed over.
func (s *Store) Deliver(ctx context.Context, topic string, consumers []string, msgs ...*message.Message) error {
	to := make([]Subscription, len(consumers))
	for i, consumer := range consumers {
		to[i].Consumer = consumer
	}
	return s.DeliverTo(ctx, topic, to, msgs...)
}

// DeliverTo is [Store.Deliver] for subscriptions. With those that keep the order
// of keys, a message that is not the first of its key is held.
func (s *Store) DeliverTo(ctx context.Context, topic string, to []Subscription, msgs ...*message.Message) error {
	_, err := s.receive(ctx, topic, to, msgs)
	return err
}

// Receive is [Store.DeliverTo] for one subscription, and says how many messages
// were new: of the others there is a row, in whatever state.
func (s *Store) Receive(ctx context.Context, topic string, to Subscription, msgs []*message.Message) (stored int64, err error) {
	return s.receive(ctx, topic, []Subscription{to}, msgs)
}

func (s *Store) receive(ctx context.Context, topic string, to []Subscription, msgs []*message.Message) (stored int64, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		stored = 0
		if err := s.lockKeys(ctx, tx, keyed(topic, to, msgs)); err != nil {
			return err
		}
		for _, sub := range to {
			n, err := s.deliver(ctx, tx, sub, topic, msgs)
			if err != nil {
				return err
			}
			stored += n
			failpoint.Hit("parked/delivered")
		}
		return nil
	})
	return stored, err
}

// deliver stores messages with one statement, but for those whose order is kept.
func (s *Store) deliver(ctx context.Context, tx *sql.Tx, sub Subscription, topic string, msgs []*message.Message) (int64, error) {
	var stored int64
	free := msgs
	if sub.KeyOrder {
		free = nil
		for _, msg := range msgs {
			k := keyFor(sub, topic, msg)
			if k.key == "" {
				free = append(free, msg)
				continue
			}
			result, err := tx.ExecContext(ctx, s.sql.order.insert,
				k.consumer, k.topic, Clean(msg.UUID, maxName), k.key, tenant(msg), Digest(msg), Encode(msg))
			var n int64
			if err == nil {
				n, err = result.RowsAffected()
			}
			if err != nil {
				return 0, fmt.Errorf("store message in the order of its key: %w", err)
			}
			stored += n
		}
	}
	if len(free) == 0 {
		return stored, nil
	}
	n, err := s.insertAll(ctx, tx, sub.Consumer, topic, free)
	return stored + n, err
}

// insertAll stores messages with one statement. What is of any bytes goes in
// one string of bytes, of which the statement takes the pieces: arrays of bytes
// are written differently for every driver.
func (s *Store) insertAll(
	ctx context.Context, tx *sql.Tx, consumer, topic string, msgs []*message.Message,
) (stored int64, err error) {
	var (
		ids, tenants    = make([]string, len(msgs)), make([]string, len(msgs))
		starts, lengths = make([]int64, len(msgs)), make([]int64, len(msgs))
		digests         = make([]byte, 0, digestSize*len(msgs))
		envelopes       []byte
	)
	for i, msg := range msgs {
		ids[i] = Clean(msg.UUID, maxName)
		tenants[i] = tenant(msg)
		digests = append(digests, Digest(msg)...)
		starts[i] = int64(len(envelopes)) + 1 // SQL counts from 1
		envelopes = appendEnvelope(envelopes, msg)
		lengths[i] = int64(len(envelopes)) + 1 - starts[i]
	}
	d := s.dialect
	result, err := tx.ExecContext(ctx, s.sql.receive, Clean(consumer, maxName), Clean(topic, maxName),
		d.Strings(ids), d.Strings(tenants), d.List(starts), d.List(lengths), digests, envelopes)
	if err == nil {
		stored, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("store %d messages: %w", len(msgs), err)
	}
	return stored, nil
}

// Forget removes rows of messages that were handled longer than keep ago, limit
// at most, and says how many.
func (s *Store) Forget(ctx context.Context, topic, consumer string, keep time.Duration, limit int) (removed int64, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.forget, Clean(consumer, maxName), Clean(topic, maxName), -keep.Milliseconds(), limit)
		if err != nil {
			return err
		}
		removed, err = result.RowsAffected()
		failpoint.Hit("parked/forgotten")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget handled messages: %w", err)
	}
	return removed, nil
}
