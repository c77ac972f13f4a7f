package parked

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

// repairBatch is the maximum number of keys that one call repairs.
const repairBatch = 1000

// RepairKeys repairs ordering keys of a subscription that would otherwise stay blocked
// forever, and returns their number. There are two kinds of such keys: the head was
// deleted by hand, or a quarantined head blocks the key although the parameter order
// does not require it.
//
// Each key is repaired in a transaction of its own. If RepairKeys fails, repaired is the
// number of keys that it repaired before.
func (s *Store) RepairKeys(ctx context.Context, consumer, topic string, order KeyOrder) (repaired int, err error) {
	consumer, topic = Clean(consumer, MaxName), Clean(topic, MaxName)
	queries := []string{s.sql.order.orphans}
	if order != BlockWhileQuarantined {
		queries = append(queries, s.sql.order.blocked)
	}
	var keys []Key
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
	if err != nil {
		err = fmt.Errorf("repair ordering keys: %w", err)
	}
	return repaired, err
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
