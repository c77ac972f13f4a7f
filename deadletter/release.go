package deadletter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Release unblocks an ordering key that a dead letter blocks. If no dead letter blocks
// the key, it returns [ErrNotBlocked]. The letter stays. If the letter is replayed
// later, it is sent after the messages that waited behind it.
func (l *Letters) Release(ctx context.Context, act Act, orderingKey string) error {
	err := act.Validate()
	if err == nil {
		err = l.release(ctx, act, orderingKey)
	}
	if err != nil {
		return fmt.Errorf("deadletter: release: %w", err)
	}
	return nil
}

func (l *Letters) release(ctx context.Context, act Act, key string) error {
	return l.table.write(ctx, func(tx *sql.Tx) error {
		var position int64
		err := tx.QueryRowContext(ctx, l.table.dialect.SQL(`SELECT position FROM {blocked_keys}
			WHERE ordering_key = $1 AND reason = '`+outboxrow.BlockedDead+`' {for_update}`), key).Scan(&position)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: %q", ErrNotBlocked, key)
		}
		if err != nil {
			return err
		}
		if err := operate.Unblock(ctx, tx, l.table.dialect, []int64{position}, []string{key}); err != nil {
			return err
		}
		err = l.table.audit(ctx, tx, act, "release", 0, []string{"key:" + key}, []string{""})
		failpoint.Hit("deadletter/key-released")
		return err
	})
}
