package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/verdict"
)

// ParkEarly ends the claim of d, or parks a message that came from the
// transport: it came before its turn, and is to be looked at again after delay.
// It loses its place in the order of its key, and nothing is charged.
func (s *Store) ParkEarly(ctx context.Context, d *Delivery, msg *message.Message, turn verdict.Turn, delay time.Duration) error {
	if d.Claim != nil {
		return s.settleOne(ctx, d.Claim, true, s.sql.postponeEarly, delay.Milliseconds(), turn.Sequence, turn.Version)
	}
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.sql.insertEarly,
			Clean(d.Consumer, maxName), Clean(d.Topic, maxName), Clean(msg.UUID, maxName), tenant(msg),
			Digest(msg), Encode(msg), delay.Milliseconds(), turn.Sequence, turn.Version)
		if err != nil {
			return fmt.Errorf("park message until its turn: %w", err)
		}
		failpoint.Hit("parked/park-early")
		return nil
	})
}
