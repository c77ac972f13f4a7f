package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// ErrIDInUse says that the id of an edited message is not new to the consumer.
var ErrIDInUse = errors.New("the consumer knows a message of that id")

// Edit puts msg, which has an id of its own, in the place of a quarantined
// entry, due now or in quarantine itself. The old one is discarded: a late copy
// of it does not run. It returns the new entry's ID.
func (s *Store) Edit(ctx context.Context, act Act, old Entry, msg *message.Message, held bool) (id int64, err error) {
	err = s.leaving(ctx, func(*sql.Tx) ([]int64, error) { return []int64{old.ID}, nil }, func(tx *sql.Tx) error {
		err := s.discard(ctx, tx, act, "edit", old.ID)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w in quarantine: %d", ErrNotFound, old.ID)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", old.ID, err)
		}
		var used bool
		if err := tx.QueryRowContext(ctx, s.sql.used, msg.UUID, old.Consumer).Scan(&used); err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%w: %q", ErrIDInUse, msg.UUID)
		}
		err = tx.QueryRowContext(ctx, s.sql.insertEdited, old.ID, msg.UUID, tenant(msg), Digest(msg), Encode(msg), held).Scan(&id)
		if err != nil {
			return fmt.Errorf("insert the edited message: %w", err)
		}
		failpoint.Hit("parked/edited")
		return s.record(ctx, tx, act, "edited", id, old.Consumer, msg.UUID)
	})
	if err != nil {
		return 0, err
	}
	return id, nil
}
