package parkedrows

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// Deliver stores messages for each of the consumers, in one transaction. The messages
// are due immediately. If a consumer already has a row for a message, Deliver skips the
// message for this consumer.
func (s *Store) Deliver(ctx context.Context, topic string, consumers []string, msgs ...*message.Message) error {
	to := make([]Subscription, len(consumers))
	for i, consumer := range consumers {
		to[i].Consumer = consumer
	}
	return s.DeliverTo(ctx, topic, to, msgs...)
}

// DeliverTo works like [Store.Deliver], for subscriptions. If a subscription keeps the order of
// keys, only the head of each key is due, and the other messages of the key are held.
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

// Receive works like [Store.DeliverTo], for batches, and returns the number of new rows. A message
// that has a row, in any state, is not stored again.
func (s *Store) Receive(ctx context.Context, batches ...*Batch) (stored int64, err error) {
	err = withASCIIFallback(func(encode encoder) error {
		return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			stored, err = s.receiveAll(ctx, tx, batches, encode)
			return err
		})
	})
	return stored, err
}

func (s *Store) receiveAll(ctx context.Context, tx *sql.Tx, batches []*Batch, encode encoder) (stored int64, err error) {
	if err := s.lockKeys(ctx, tx, keysOfBatches(batches...)); err != nil {
		return 0, err
	}
	for _, b := range batches {
		n, err := s.receive(ctx, tx, b, encode)
		if err != nil {
			return 0, err
		}
		stored += n
		failpoint.Hit("parked/delivered")
	}
	return stored, nil
}

func (s *Store) receive(ctx context.Context, tx *sql.Tx, b *Batch, encode encoder) (int64, error) {
	stored, err := s.insert(ctx, tx, encode, s.sql.inOrder, b, b.ordered, s.dialect.Strings(b.keys))
	if err != nil {
		return 0, err
	}
	if stored < int64(len(b.keys)) {
		// The first message of a key may be a skipped copy: then the key has no head yet.
		if err := s.promote(ctx, tx, keysOfBatches(b)); err != nil {
			return 0, err
		}
	}
	n, err := s.insert(ctx, tx, encode, s.sql.receive, b, b.unordered)
	return stored + n, err
}

func (s *Store) insert(
	ctx context.Context, tx *sql.Tx, encode encoder, query string, b *Batch, r rows, more ...any,
) (stored int64, err error) {
	if len(r.ids) == 0 {
		return 0, nil
	}
	d := s.dialect
	args := []any{
		b.consumer, b.topic,
		d.Strings(r.ids), d.Strings(r.tenants), d.List(r.starts), d.List(r.lengths), r.digests, r.envelopes,
	}
	for _, labels := range r.labels {
		args = append(args, d.Strings(labels))
	}
	result, err := tx.ExecContext(ctx, query, encode(append(args, more...)...)...)
	if err == nil {
		stored, err = result.RowsAffected()
	}
	if err == nil && stored < int64(len(r.ids)) {
		err = s.checkReceived(ctx, tx, encode, b.consumer, r)
	}
	if err != nil {
		return 0, fmt.Errorf("store %d messages: %w", len(r.ids), err)
	}
	return stored, nil
}

// checkReceived returns an error if messages have no row after the insert. The transport would ack
// them.
func (s *Store) checkReceived(ctx context.Context, tx *sql.Tx, encode encoder, consumer any, r rows) error {
	var missing int64
	values := encode(consumer, s.dialect.Strings(r.ids), r.digests)
	if err := tx.QueryRowContext(ctx, s.sql.unstored, values...).Scan(&missing); err != nil || missing == 0 {
		return err
	}
	return s.dialect.Unchanged("parked", fmt.Sprintf("%d rows of received messages were not inserted", missing))
}

// Forget deletes up to limit rows of messages that were handled longer than keep ago, and returns
// their number. Replayed rows stay: dedup deletes them.
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
		return 0, fmt.Errorf("delete the rows of handled messages: %w", err)
	}
	return removed, nil
}

// Batch contains messages of one topic for one subscription, encoded. While one batch is being
// stored, another one can be filled.
type Batch struct {
	consumer, topic string
	keyOrder        bool

	unordered rows
	ordered   rows     // messages with an ordering key; none if the subscription does not keep their order
	keys      []string // ordering key of each element of ordered
}

// NewBatch returns an empty batch.
func NewBatch(topic string, to Subscription) *Batch {
	return &Batch{consumer: Clean(to.Consumer, MaxName), topic: Clean(topic, MaxName), keyOrder: to.KeyOrder}
}

// Add copies a message into the batch.
func (b *Batch) Add(msg *message.Message) {
	key := OrderingKey(msg)
	if !b.keyOrder || key == "" {
		b.unordered.add(msg)
		return
	}
	b.ordered.add(msg)
	b.keys = append(b.keys, key)
}

// Bytes returns the total size of the envelopes in the batch.
func (b *Batch) Bytes() int { return len(b.unordered.envelopes) + len(b.ordered.envelopes) }

// rows contains messages as the arguments of one statement. All values of a binary column are
// joined into one argument, because each driver encodes a list of byte strings in a different way.
type rows struct {
	ids, tenants       []string
	labels             [4][]string // one list for each column of labelColumns
	starts, lengths    []int64
	digests, envelopes []byte
}

func (r *rows) add(msg *message.Message) {
	r.ids = append(r.ids, Clean(msg.UUID, MaxName))
	r.tenants = append(r.tenants, TenantOf(msg))
	for i, label := range labelsOf(msg) {
		r.labels[i] = append(r.labels[i], label)
	}
	r.digests = append(r.digests, Digest(msg)...)
	start := len(r.envelopes)
	r.envelopes = appendEnvelope(r.envelopes, msg)
	r.starts = append(r.starts, int64(start)+1) // SQL counts from 1
	r.lengths = append(r.lengths, int64(len(r.envelopes)-start))
}

func keysOfBatches(batches ...*Batch) []Key {
	var keys []Key
	for _, b := range batches {
		for _, key := range b.keys {
			keys = append(keys, Key{b.consumer, b.topic, key})
		}
	}
	return keys
}
