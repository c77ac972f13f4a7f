package parkedrows

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
)

// KeyOrder says how a consumer keeps the order of messages with the same ordering key.
type KeyOrder int

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

// changeKeys calls f in a transaction, in which f may settle the heads of keys. If a key then has
// no head, its next held row becomes the head.
//
// The keys are locked before f: otherwise a row that is stored while its head is being settled
// could wait for a head that no longer exists, and a transaction that locks a row before its key
// could deadlock with one that locks the key first.
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

// lockKeys keeps other transactions from adding rows to the keys and settling their heads until tx
// ends. All transactions lock keys in the same order.
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

func (s *Store) lockOf(k Key) int64 {
	h := fnv.New64a()
	for _, part := range []string{s.dialect.Config().Table("parked"), k.consumer, k.topic, k.key} {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		_, _ = h.Write([]byte(part))
	}
	return int64(h.Sum64())
}

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

// ReplaceHeads calls two functions in one transaction: affected returns the ids of rows, and f,
// which is called when the keys of these rows are locked, removes the rows from the order of their
// keys. If a key then has no head, its next held row becomes the head.
//
// While the keys are locked, no message with one of them can be stored. Therefore a statement of f
// fails with PostgreSQL if it waits for a lock for longer than a second.
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

func (s *Store) keysOf(ctx context.Context, tx *sql.Tx, ids []int64) (keys []Key, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var k Key
		err := scan(&k.consumer, &k.topic, &k.key)
		keys = append(keys, k)
		return err
	}, s.sql.order.keysOf, s.dialect.List(ids))
	return keys, err
}

// ParkEarly parks a message that is early: a lower version of its aggregate was not
// applied yet. If d has a claim, ParkEarly ends the claim. Otherwise the message came
// from the transport, and ParkEarly stores it. The message is due again after the given
// delay. If the lower version was applied in the meantime, the message is due
// immediately, and ParkEarly wakes the consumer, because no other code does. The
// message gives up its place in the order of its ordering key: later messages with this
// key do not wait for it. No attempt is counted.
func (s *Store) ParkEarly(ctx context.Context, d *Delivery, msg *message.Message, turn chain.Turn, delay time.Duration) error {
	var remaining time.Duration
	err := s.parkEarly(ctx, d, msg, turn, delay, &remaining)
	if err == nil && remaining == 0 && d.Wake != nil {
		d.Wake()
	}
	return err
}

func (s *Store) parkEarly(
	ctx context.Context, d *Delivery, msg *message.Message, turn chain.Turn, delay time.Duration, remaining *time.Duration,
) error {
	if d.Claim == nil {
		return withASCIIFallback(func(encode encoder) error {
			return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
				delay, err := s.untilTurn(ctx, tx, d, turn, delay)
				if *remaining = delay; err != nil {
					return err
				}
				err = s.insertOne(ctx, tx, s.sql.insertEarly, encode(append([]any{
					Clean(d.Consumer, MaxName), Clean(d.Topic, MaxName), Clean(msg.UUID, MaxName), TenantOf(msg),
					Digest(msg), Encode(msg), delay.Milliseconds(), turn.Sequence, turn.Version,
				}, LabelsOf(msg)...)...)...)
				if err != nil {
					return fmt.Errorf("park message until its turn: %w", err)
				}
				return nil
			})
		})
	}
	claim := d.Claim
	return s.end([]*Claim{claim}, func() (moved, stay map[int64]bool, err error) {
		moved = map[int64]bool{}
		err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			delay, err := s.untilTurn(ctx, tx, d, turn, delay)
			if *remaining = delay; err != nil {
				return err
			}
			err = s.changeKeysIn(ctx, tx, claim.keys(), func(tx *sql.Tx) error {
				return moveOne(ctx, tx, moved, claim, s.sql.postponeEarly, delay.Milliseconds(), turn.Sequence, turn.Version)
			})
			if err == nil {
				stay, err = s.stay(ctx, tx, moved, []*Claim{claim})
			}
			return err
		})
		return moved, stay, err
	})
}

// untilTurn returns delay, or 0 if the lower version has been applied in the meantime. A
// transaction that applies it later waits until tx has ended, and then finds the row of the early
// message.
//
// This lock on the version must be the first lock of tx: another handler's transaction may have it
// and wait for any other lock.
func (s *Store) untilTurn(ctx context.Context, tx *sql.Tx, d *Delivery, turn chain.Turn, delay time.Duration) (time.Duration, error) {
	var last int64
	err := tx.QueryRowContext(ctx, s.sql.lockVersion, d.Consumer, turn.AggregateType, turn.AggregateID).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("read the last version: %w", err)
	}
	failpoint.Hit("parked/park-early")
	if last == noVersion {
		n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.unlockVersion, d.Consumer, turn.AggregateType, turn.AggregateID))
		if err == nil && n == 0 {
			err = s.dialect.Unchanged("versions", "a row was not deleted")
		}
		if err != nil {
			return 0, fmt.Errorf("remove the placeholder of the first version: %w", err)
		}
		return delay, nil
	}
	if last >= turn.Version-1 {
		return 0, nil
	}
	return delay, nil
}

// noVersion is the version of an aggregate that has none yet. It is lower than every real version.
const noVersion = -1

const repairBatch = 1000

// RepairKeys repairs ordering keys of a subscription that would stay blocked forever: their head
// was deleted by hand, or is quarantined although order does not require them to wait. It returns
// the number of repaired keys, also with an error, because each key has its own transaction.
func (s *Store) RepairKeys(ctx context.Context, consumer, topic string, order KeyOrder) (repaired int, err error) {
	consumer, topic = Clean(consumer, MaxName), Clean(topic, MaxName)
	queries := []string{s.sql.order.orphans}
	if order != BlockWhileQuarantined {
		queries = append(queries, s.sql.order.blocked)
	}
	keys, err := s.findAll(ctx, queries, consumer, topic)
	for _, k := range keys {
		if err != nil {
			break
		}
		err = s.changeKeys(ctx, []Key{k}, func(tx *sql.Tx) error {
			if order == BlockWhileQuarantined {
				return nil
			}
			_, err := tx.ExecContext(ctx, s.sql.order.unblock, k.consumer, k.topic, k.key)
			return err
		})
		if err == nil {
			repaired++
		}
	}
	if err == nil && repaired > 0 {
		err = s.checkRepaired(ctx, keys, queries, consumer, topic)
	}
	if err != nil {
		err = fmt.Errorf("repair ordering keys: %w", err)
	}
	return repaired, err
}

// checkRepaired returns an error if a repaired key is still blocked, because the database has
// ignored the change.
func (s *Store) checkRepaired(ctx context.Context, repaired []Key, queries []string, consumer, topic string) error {
	again, err := s.findAll(ctx, queries, consumer, topic)
	for _, k := range again {
		if slices.Contains(repaired, k) {
			return s.dialect.Unchanged("parked", fmt.Sprintf("the next row of the ordering key %q was not updated", k.key))
		}
	}
	return err
}

func (s *Store) findAll(ctx context.Context, queries []string, consumer, topic string) (keys []Key, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		for _, query := range queries {
			found, err := s.find(ctx, tx, query, consumer, topic)
			if err != nil {
				return err
			}
			keys = append(keys, found...)
		}
		return nil
	})
	return keys, err
}

func (s *Store) find(ctx context.Context, tx *sql.Tx, query, consumer, topic string) (keys []Key, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		k := Key{consumer: consumer, topic: topic}
		err := scan(&k.key)
		keys = append(keys, k)
		return err
	}, query, consumer, topic, repairBatch)
	return keys, err
}
