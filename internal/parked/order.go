package parked

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
)

// KeyOrder says how a consumer keeps the order of the messages of one ordering
// key.
type KeyOrder int

// See the constants of package retry.
const (
	Unordered KeyOrder = iota
	BlockWhileRetried
	BlockWhileQuarantined
	BlockWhileRunning
)

// Key is an ordering key of one subscription. The zero value stands for no key.
type Key struct {
	consumer, topic, key string
}

// OrderingKey returns the ordering key of msg as it is stored, or "".
func OrderingKey(msg *message.Message) string { return Clean(msg.Metadata[meta.OrderingKey], MaxName) }

func (c *Claim) keys() []Key {
	if c.Key == (Key{}) {
		return nil
	}
	return []Key{c.Key}
}

// changeKeys runs work in a transaction that may settle the heads of keys. Then the
// next held row of each key without a head becomes its head.
//
// The locks come first. Otherwise a row that is stored while its head is settled
// could wait for a head that no longer exists. And a transaction that locks a row
// before the key could wait for a transaction that does the opposite.
func (s *Store) changeKeys(ctx context.Context, keys []Key, work func(tx *sql.Tx) error) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error { return s.changeKeysIn(ctx, tx, keys, work) })
}

func (s *Store) changeKeysIn(ctx context.Context, tx *sql.Tx, keys []Key, work func(tx *sql.Tx) error) error {
	if err := s.lockKeys(ctx, tx, keys); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	failpoint.Hit("parked/changed")
	return s.promote(ctx, tx, keys)
}

// lockKeys prevents other transactions from adding rows to the keys and from
// settling their heads until tx ends. All transactions lock keys in one order.
func (s *Store) lockKeys(ctx context.Context, tx *sql.Tx, keys []Key) error {
	if s.sql.order.lock == "" || len(keys) == 0 {
		return nil
	}
	locks := make([]int64, len(keys))
	for i, k := range keys {
		locks[i] = s.lockOf(k)
	}
	slices.Sort(locks)
	if _, err := tx.ExecContext(ctx, s.sql.order.lock, s.dialect.List(slices.Compact(locks))); err != nil {
		return fmt.Errorf("lock %d ordering keys: %w", len(keys), err)
	}
	return nil
}

// lockOf returns the number of a key's lock. Two keys may have the same number, and
// then wait for each other.
func (s *Store) lockOf(k Key) int64 {
	h := fnv.New64a()
	for _, part := range []string{s.dialect.Config().Table("parked"), k.consumer, k.topic, k.key} {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		_, _ = h.Write([]byte(part))
	}
	return int64(h.Sum64())
}

// promote makes the first held row of each key its head, if the key has no head.
func (s *Store) promote(ctx context.Context, tx *sql.Tx, keys []Key) error {
	if len(keys) == 0 {
		return nil
	}
	consumers, topics, names := make([]string, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		consumers[i], topics[i], names[i] = k.consumer, k.topic, k.key
	}
	d := s.dialect
	if _, err := tx.ExecContext(ctx, s.sql.order.promote, d.Strings(consumers), d.Strings(topics), d.Strings(names)); err != nil {
		return fmt.Errorf("promote the next messages of %d ordering keys: %w", len(keys), err)
	}
	failpoint.Hit("parked/promoted")
	return nil
}

// ReplaceHeads runs work in a transaction in which the rows leave their places
// in the order of their ordering keys; then the next held row of each key without a
// head becomes its head. rows returns the ids of the rows, in the same transaction.
// Rows without a key are allowed.
//
// While the keys are locked no message of them can be stored, so with PostgreSQL
// a statement of work that waits longer than a second for another lock fails.
func (s *Store) ReplaceHeads(
	ctx context.Context, rows func(tx *sql.Tx) ([]int64, error), work func(tx *sql.Tx) error,
) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		ids, err := rows(tx)
		if err != nil {
			return err
		}
		keys, err := s.keysOf(ctx, tx, ids)
		if err != nil {
			return err
		}
		return s.changeKeysIn(ctx, tx, keys, func(tx *sql.Tx) error {
			if len(keys) > 0 && s.sql.lockTimeout != "" {
				if _, err := tx.ExecContext(ctx, s.sql.lockTimeout); err != nil {
					return err
				}
			}
			return work(tx)
		})
	})
}

// keysOf returns the keys whose heads or held rows are among the rows.
func (s *Store) keysOf(ctx context.Context, tx *sql.Tx, ids []int64) (keys []Key, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var k Key
		err := scan(&k.consumer, &k.topic, &k.key)
		keys = append(keys, k)
		return err
	}, s.sql.order.keysOf, s.dialect.List(ids))
	return keys, err
}
