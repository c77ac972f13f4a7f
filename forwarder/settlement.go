package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"math"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
)

// settle records outcomes in the database. The result says which parts succeeded. The
// failed parts can be recorded again.
func (s *store) settle(ctx context.Context, batch *dispatch.Settlement, afterDead func(topic string) AfterDead) dispatch.Settled {
	var (
		result dispatch.Settled
		errs   []error
	)
	if len(batch.Confirmed) > 0 {
		failpoint.Hit("forwarder/remove")
		removed, err := s.remove(ctx, batch.Confirmed)
		failpoint.Hit("forwarder/removed")
		result.Confirmed = err == nil
		result.Wrote = err == nil && removed > 0
		errs = append(errs, err)
	}
	if len(batch.Charges) > 0 {
		failpoint.Hit("forwarder/charge")
		charged, err := s.charge(ctx, batch.Charges)
		failpoint.Hit("forwarder/charged")
		result.Charges = err == nil
		result.Vanished = charged < int64(len(batch.Charges))
		result.Wrote = result.Wrote || err == nil && charged > 0
		errs = append(errs, err)
	}
	for _, d := range batch.Deaths {
		failpoint.Hit("forwarder/give-up")
		moved, err := s.moveDead(ctx, d, afterDead(d.Message.Topic))
		failpoint.Hit("forwarder/given-up")
		if err != nil {
			errs = append(errs, err)
			break
		}
		result.Deaths++
		result.Vanished = result.Vanished || !moved
		result.Wrote = result.Wrote || moved
	}
	result.Err = errors.Join(errs...)
	return result
}

// remove deletes the rows of confirmed messages, and returns the number of deleted
// rows. If such a message was the head of a blocked key, remove also unblocks the key.
// It may be called again with the same messages. An instance that has lost the slots
// may call it, too: the messages remain confirmed, and the new owner unblocks their
// keys.
func (s *store) remove(ctx context.Context, confirmed []*dispatch.Message) (removed int64, err error) {
	var (
		positions, heads, slots []int64
		ids, keys               []string
	)
	for _, m := range confirmed {
		positions = append(positions, m.Position)
		ids = append(ids, m.ID)
		if m.BlocksKey {
			heads, slots = append(heads, m.Position), append(slots, m.Slot)
			keys = append(keys, m.Key)
		}
	}
	err = s.write(ctx, func(tx *sql.Tx) error {
		removed = 0
		if len(heads) > 0 {
			if err := s.unblock(ctx, tx, heads, keys, slots); err != nil {
				return err
			}
			failpoint.Hit("forwarder/key-unblocked")
		}
		statements := []string{s.sql.remove}
		if s.keepSent {
			statements = s.sql.removeLogged
		}
		for _, statement := range statements {
			result, err := tx.ExecContext(ctx, statement, s.dialect.List(positions), s.dialect.Strings(ids))
			if err != nil {
				return err
			}
			if removed, err = result.RowsAffected(); err != nil {
				return err
			}
			failpoint.Hit("forwarder/rows-deleted")
		}
		return nil
	})
	return removed, err
}

// charge records attempts, due times and blocked keys. It returns the number of rows
// that still exist in slots of this instance.
func (s *store) charge(ctx context.Context, charges []dispatch.Charge) (found int64, err error) {
	var (
		positions, attempts, delays []int64
		ids, texts, reasons         []string
		unknown, after              []int64
	)
	for i, c := range charges {
		positions = append(positions, c.Message.Position)
		ids = append(ids, c.Message.ID)
		// The statement sets this number, instead of adding to the number in the row, because
		// charge is called again after a commit with an unknown outcome.
		attempts = append(attempts, min(int64(c.Message.Attempts)+int64(c.Attempts), math.MaxInt32))
		delays = append(delays, c.Delay.Milliseconds())
		texts = append(texts, clean(c.Err))
		reasons = append(reasons, blockReason(c))
		after = append(after, c.SuccessorsAfter)
		unknown = append(unknown, 0)
		if c.Message.WasUnknown {
			unknown[i] = 1
		}
	}
	args := []any{
		s.dialect.List(positions), s.dialect.Strings(ids), s.dialect.List(attempts),
		s.dialect.List(delays), s.dialect.Strings(texts), s.dialect.Strings(reasons), s.dialect.List(unknown),
		s.dialect.List(after), s.owner,
	}
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.charge, args...)
		if err != nil {
			return err
		}
		if found, err = result.RowsAffected(); err != nil {
			return err
		}
		failpoint.Hit("forwarder/attempt-charged")
		_, err = tx.ExecContext(ctx, s.sql.block, args...)
		failpoint.Hit("forwarder/key-blocked")
		return err
	})
	return found, err
}

// blockReason returns the value for the column reason of a blocked key.
func blockReason(c dispatch.Charge) string {
	if c.Cause == dispatch.Unknown {
		return outboxrow.BlockedUnknown
	}
	return outboxrow.BlockedRefused
}

// reasonOf returns the value for the column reason of a dead letter.
func reasonOf(d dispatch.Death) string {
	if d.Exhausted {
		return outboxrow.DeadExhausted
	}
	return outboxrow.DeadUnacceptable
}

// errRemoved makes moveDead roll back its transaction, because somebody else has
// removed the row at the same time.
var errRemoved = errors.New("forwarder: the message was removed by somebody else")

// moveDead moves a message to the dead letters. It returns false if the row no longer
// exists, or if its slot belongs to another instance.
func (s *store) moveDead(ctx context.Context, d dispatch.Death, afterDead AfterDead) (moved bool, err error) {
	m := d.Message
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.copyDead, m.Position, m.ID, clean(d.Err), reasonOf(d), m.WasUnknown, s.owner)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil || n == 0 {
			return err
		}
		moved = true
		failpoint.Hit("forwarder/dead-row-written")
		if result, err = tx.ExecContext(ctx, s.sql.removeOne, m.Position, m.ID); err != nil {
			return err
		}
		if n, err = result.RowsAffected(); err != nil {
			return err
		}
		if n == 0 {
			return errRemoved
		}
		failpoint.Hit("forwarder/dead-row-deleted")
		if m.Key == "" {
			return nil
		}
		if afterDead == BlockKey {
			_, err = tx.ExecContext(ctx, s.sql.blockByDead, m.Key, m.Position, d.SuccessorsAfter)
		} else {
			_, err = tx.ExecContext(ctx, s.sql.unblockOne, m.Key, m.Position)
		}
		failpoint.Hit("forwarder/dead-key-set")
		return err
	})
	return moved, err
}
