package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// Replay gives entries back to the consumers that failed. The messages are due
// immediately, and their attempts and crashes are counted from zero again. Replay
// changes all entries, or it returns an error and changes none. It returns
// [ErrNotFound] if an entry is not in quarantine, [ErrUndecodable] if an entry cannot
// be decoded, and [ErrNotRunning] if the consumer of an entry is not running. It does
// not wait until the messages are handled. [Quarantine.Replayed] lists the messages
// that still wait. For many entries, use [Quarantine.ReplayMatching].
func (q *Quarantine) Replay(ctx context.Context, act Act, ids ...int64) error {
	ids, err := operate.Distinct(ids)
	if err = errors.Join(act.Validate(), err); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	if err := q.checkRunning(ctx, Filter{IDs: ids}, parked.Quarantined); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	if err := q.table.replay(ctx, act, ids); err != nil {
		return fmt.Errorf("poison: replay: %w", err)
	}
	q.instruments.replayed.Add(int64(len(ids)), 0)
	return nil
}

// ErrUndecodable means that a message cannot be replayed, because its transport could
// not decode it. The entry contains only the raw form. Edit the entry.
var ErrUndecodable = errors.New("the message could not be decoded when it came: edit it")

func (t *table) replay(ctx context.Context, act Act, ids []int64) error {
	return t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error {
			var (
				consumer, messageID string
				undecodable         bool
			)
			if err := tx.QueryRowContext(ctx, t.sql.replay, id).Scan(&consumer, &messageID, &undecodable); err != nil {
				return err
			}
			if undecodable {
				return ErrUndecodable
			}
			failpoint.Hit("poison/replay")
			return t.record(ctx, tx, act, "replay", id, consumer, messageID)
		})
	})
}
