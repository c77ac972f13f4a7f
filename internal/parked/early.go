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

// ParkEarly parks a message that is early: a lower version of its aggregate was not
// applied yet. If d has a claim, ParkEarly ends the claim. Otherwise the message came
// from the transport, and ParkEarly stores it. The message is due again after the given
// delay. If the lower version was applied in the meantime, the message is due
// immediately, and ParkEarly wakes the consumer, because no other code does. The
// message gives up its place in the order of its ordering key: later messages with this
// key do not wait for it. No attempt is counted.
func (s *Store) ParkEarly(ctx context.Context, d *Delivery, msg *message.Message, turn disposition.Turn, delay time.Duration) error {
	var remaining time.Duration
	err := s.parkEarly(ctx, d, msg, turn, delay, &remaining)
	if err == nil && remaining == 0 && d.Wake != nil {
		d.Wake()
	}
	return err
}

// parkEarly parks the message like ParkEarly, but does not wake the consumer. It sets
// *remaining to the time after which the message is due.
func (s *Store) parkEarly(
	ctx context.Context, d *Delivery, msg *message.Message, turn disposition.Turn, delay time.Duration, remaining *time.Duration,
) error {
	if d.Claim == nil {
		return withASCIIFallback(func(encode encoder) error {
			return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
				delay, err := s.untilTurn(ctx, tx, d, turn, delay)
				if *remaining = delay; err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, s.sql.insertEarly, encode(append([]any{
					Clean(d.Consumer, MaxName), Clean(d.Topic, MaxName), Clean(msg.UUID, MaxName), TenantOf(msg),
					Digest(msg), Encode(msg), delay.Milliseconds(), turn.Sequence, turn.Version,
				}, LabelsOf(msg)...)...)...)
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
			if *remaining = delay; err != nil {
				return err
			}
			return s.changeKeysIn(ctx, tx, claim.keys(), func(tx *sql.Tx) error {
				return moveOne(ctx, tx, moved, claim, s.sql.postponeEarly, delay.Milliseconds(), turn.Sequence, turn.Version)
			})
		})
	})
}

// untilTurn returns the given delay, or 0 if the lower version has been applied in the
// meantime. If another transaction applies the lower version after this check, it waits
// until tx has ended, and then finds the row of the early message.
//
// The lock on the version must be the first lock that tx takes. Another handler's
// transaction may have this lock and wait for any other lock, so a different order
// could cause a deadlock.
func (s *Store) untilTurn(ctx context.Context, tx *sql.Tx, d *Delivery, turn disposition.Turn, delay time.Duration) (time.Duration, error) {
	var last int64
	err := tx.QueryRowContext(ctx, s.sql.lockVersion, d.Consumer, turn.AggregateType, turn.AggregateID).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("read the last version: %w", err)
	}
	if last == noVersion {
		_, err = tx.ExecContext(ctx, s.sql.unlockVersion, d.Consumer, turn.AggregateType, turn.AggregateID)
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

// noVersion is the version in the placeholder row of an aggregate that has no version
// yet. It is lower than every real version.
const noVersion = -1
