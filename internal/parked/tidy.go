package parked

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

// tidyBatch is how many keys one look at the table sets right.
const tidyBatch = 1000

// Tidy sets right what no head of a subscription's keys will: rows that are
// held though their head is gone, because somebody has deleted it, and keys
// that are held by a quarantine though they are to go on. It returns how many
// keys it were.
func (s *Store) Tidy(ctx context.Context, consumer, topic string, order KeyOrder) (set int, err error) {
	consumer, topic = Clean(consumer, MaxName), Clean(topic, MaxName)
	queries := []string{s.sql.order.orphans}
	if order != BlockWhileQuarantined {
		queries = append(queries, s.sql.order.headed)
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
			_, err := tx.ExecContext(ctx, s.sql.order.letGo, k.consumer, k.topic, k.key)
			return err
		})
		set++
	}
	if err != nil {
		return 0, fmt.Errorf("look for ordering keys to set right: %w", err)
	}
	return set, nil
}

func (s *Store) find(ctx context.Context, tx *sql.Tx, query, consumer, topic string) (keys []Key, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		k := Key{consumer: consumer, topic: topic}
		err := scan(&k.key)
		keys = append(keys, k)
		return err
	}, query, consumer, topic, tidyBatch)
	return keys, err
}
