package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
)

// ParkEarly ends the claim of d, or parks a message that came from the
// transport: it came before its turn, and is to be looked at again after delay,
// or at once if its turn has come by now. It loses its place in the order of its
// key, and nothing is charged.
func (s *Store) ParkEarly(ctx context.Context, d *Delivery, msg *message.Message, turn disposition.Turn, delay time.Duration) error {
	if d.Claim == nil {
		return fitting(func(fit fitter) error {
			return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
				delay, err := s.untilTurn(ctx, tx, d, turn, delay)
				if err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, s.sql.insertEarly, fit(
					Clean(d.Consumer, MaxName), Clean(d.Topic, MaxName), Clean(msg.UUID, MaxName), TenantOf(msg),
					Digest(msg), Encode(msg), delay.Milliseconds(), turn.Sequence, turn.Version)...)
				if err != nil {
					return fmt.Errorf("park message until its turn: %w", err)
				}
				failpoint.Hit("parked/park-early")
				return nil
			})
		})
	}
	claim := d.Claim
	return ended([]*Claim{claim}, func() (moved map[int64]bool, err error) {
		moved = map[int64]bool{}
		return moved, s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			delay, err := s.untilTurn(ctx, tx, d, turn, delay)
			if err != nil {
				return err
			}
			return s.changeKeysIn(ctx, tx, claim.keys(), func(tx *sql.Tx) error {
				return moveOne(ctx, tx, moved, claim, s.sql.postponeEarly, delay.Milliseconds(), turn.Sequence, turn.Version)
			})
		})
	})
}

// untilTurn returns how long a message has to wait: not at all if the version
// before it has been applied since it was found to be early. Who applies that
// from here on waits for tx, and finds the row.
//
// This comes before all other locks. A handler whose transaction has the
// version may wait for whatever there is.
func (s *Store) untilTurn(ctx context.Context, tx *sql.Tx, d *Delivery, turn disposition.Turn, delay time.Duration) (time.Duration, error) {
	var last int64
	err := tx.QueryRowContext(ctx, s.sql.lockVersion, d.Consumer, turn.AggregateType, turn.AggregateID).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("look at the last version: %w", err)
	}
	if last == noVersion {
		_, err = tx.ExecContext(ctx, s.sql.unlockVersion, d.Consumer, turn.AggregateType, turn.AggregateID)
		if err != nil {
			return 0, fmt.Errorf("take back the place of the first version: %w", err)
		}
		return delay, nil
	}
	if last >= turn.Version-1 {
		return 0, nil
	}
	return delay, nil
}

// noVersion is below all versions.
const noVersion = -1
