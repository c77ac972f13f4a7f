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
	batches := make([]*Batch, len(to))
	for i, sub := range to {
		batches[i] = NewBatch(topic, sub)
		for _, msg := range msgs {
			batches[i].Add(msg)
		}
	}
	_, err := s.Receive(ctx, batches...)
	return err
}

// Receive is [Store.DeliverTo] for batches, and says how many messages were new:
// of the others there is a row, in whatever state.
func (s *Store) Receive(ctx context.Context, batches ...*Batch) (stored int64, err error) {
	err = fitting(func(fit fitter) error {
		return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			stored, err = s.receiveAll(ctx, tx, batches, fit)
			return err
		})
	})
	return stored, err
}

func (s *Store) receiveAll(ctx context.Context, tx *sql.Tx, batches []*Batch, fit fitter) (stored int64, err error) {
	if err := s.lockKeys(ctx, tx, keysOfBatches(batches...)); err != nil {
		return 0, err
	}
	for _, b := range batches {
		n, err := s.receive(ctx, tx, b, fit)
		if err != nil {
			return 0, err
		}
		stored += n
		failpoint.Hit("parked/delivered")
	}
	return stored, nil
}

// receive stores messages with one statement, or one for those whose order is
// kept and one for the others.
func (s *Store) receive(ctx context.Context, tx *sql.Tx, b *Batch, fit fitter) (int64, error) {
	stored, err := s.insert(ctx, tx, fit, s.sql.inOrder, b, b.inOrder, s.dialect.Strings(b.keys))
	if err != nil {
		return 0, err
	}
	if stored < int64(len(b.keys)) { // where the head was to be, a copy of something else may have come
		if err := s.promote(ctx, tx, keysOfBatches(b)); err != nil {
			return 0, err
		}
	}
	n, err := s.insert(ctx, tx, fit, s.sql.receive, b, b.free)
	return stored + n, err
}

func (s *Store) insert(
	ctx context.Context, tx *sql.Tx, fit fitter, query string, b *Batch, r rows, more ...any,
) (stored int64, err error) {
	if len(r.ids) == 0 {
		return 0, nil
	}
	d := s.dialect
	args := []any{
		b.consumer, b.topic,
		d.Strings(r.ids), d.Strings(r.tenants), d.List(r.starts), d.List(r.lengths), r.digests, r.envelopes,
	}
	result, err := tx.ExecContext(ctx, query, fit(append(args, more...)...)...)
	if err == nil {
		stored, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("store %d messages: %w", len(r.ids), err)
	}
	return stored, nil
}

// Forget removes rows of messages that were handled longer than keep ago, limit
// at most, and says how many.
func (s *Store) Forget(ctx context.Context, topic, consumer string, keep time.Duration, limit int) (removed int64, err error) {
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.forget, Clean(consumer, MaxName), Clean(topic, MaxName), -keep.Milliseconds(), limit)
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
