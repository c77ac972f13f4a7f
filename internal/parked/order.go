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

// KeyOrder says how a consumer keeps the order of messages with the same ordering key.
type KeyOrder int

// Package retry documents these values.
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

// changeKeys calls f in a transaction. The function f may settle the heads of the given
// keys. If a key then has no head, the next held row of the key becomes the head, in
// the same transaction.
//
// changeKeys locks the keys before it calls f, for two reasons. A row that is stored
// while its head is being settled could otherwise wait for a head that no longer
// exists. And a transaction that locks a row before the key could deadlock with a
// transaction that locks the key first.
func (s *Store) changeKeys(ctx context.Context, keys []Key, f func(tx *sql.Tx) error) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error { return s.changeKeysIn(ctx, tx, keys, f) })
}

func (s *Store) changeKeysIn(ctx context.Context, tx *sql.Tx, keys []Key, f func(tx *sql.Tx) error) error {
	if err := s.lockKeys(ctx, tx, keys); err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return err
	}
	failpoint.Hit("parked/changed")
	return s.promote(ctx, tx, keys)
}

// lockKeys locks the keys until tx ends. Until then, other transactions can neither add
// rows to the keys nor settle the heads of the keys. All transactions lock keys in the
// same order.
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

// lockOf returns the number of the lock of a key. Two keys can have the same number.
// Transactions that lock one of these keys then wait for each other, which does no
// harm.
func (s *Store) lockOf(k Key) int64 {
	h := fnv.New64a()
	for _, part := range []string{s.dialect.Config().Table("parked"), k.consumer, k.topic, k.key} {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		_, _ = h.Write([]byte(part))
	}
	return int64(h.Sum64())
}

// promote makes the first held row of each key the head, unless the key has a head.
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

// ReplaceHeads calls two functions in one transaction. The first one, affected, returns
// the ids of rows, with or without an ordering key. ReplaceHeads then locks the keys of
// these rows, and calls the second function, f. This function removes the rows from the
// order of their keys. If a key then has no head, the next held row of the key becomes
// the head.
//
// While the keys are locked, no message with one of these keys can be stored. So that
// the keys are not locked for long, ReplaceHeads limits the wait of f for other locks:
// with PostgreSQL, a statement of f fails if it waits for a lock for longer than a
// second.
func (s *Store) ReplaceHeads(
	ctx context.Context, affected func(tx *sql.Tx) ([]int64, error), f func(tx *sql.Tx) error,
) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		ids, err := affected(tx)
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
			return f(tx)
		})
	})
}

// keysOf returns the keys of those rows that are heads or held.
func (s *Store) keysOf(ctx context.Context, tx *sql.Tx, ids []int64) (keys []Key, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var k Key
		err := scan(&k.consumer, &k.topic, &k.key)
		keys = append(keys, k)
		return err
	}, s.sql.order.keysOf, s.dialect.List(ids))
	return keys, err
}
