package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
)

// settle records outcomes in the database. Parts that failed can be recorded again.
func (s *store) settle(ctx context.Context, batch *dispatch.Settlement, afterDead func(topic string) AfterDead) dispatch.Settled {
	var (
		result dispatch.Settled
		errs   []error
	)
	if len(batch.Confirmed) > 0 {
		failpoint.Hit("forwarder/remove")
		removed, stays, err := s.remove(ctx, batch.Confirmed)
		failpoint.Hit("forwarder/removed")
		result.Confirmed = err == nil
		result.Wrote = err == nil && removed > 0
		if err == nil && len(stays) > 0 {
			result.Stays = stays
			result.StaysErr = s.dialect.Unchanged("outbox", fmt.Sprintf("%d rows of sent messages were not deleted (the first has position %d)",
				len(stays), stays[0]))
		}
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

// remove deletes the rows of confirmed messages, and returns their number and the positions of rows
// that are still there. It unblocks the key of a head. It may be repeated, also by an instance that
// has lost the slots: the messages remain confirmed, and the new owner unblocks their keys.
func (s *store) remove(ctx context.Context, confirmed []*dispatch.Message) (removed int64, stays []int64, err error) {
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
		removed, stays = 0, nil
		if len(heads) > 0 {
			if err := s.unblock(ctx, tx, heads, keys, slots); err != nil {
				return err
			}
			failpoint.Hit("forwarder/key-unblocked")
		}
		args := []any{s.dialect.List(positions), s.dialect.Strings(ids)}
		var err error
		if s.keepSent {
			removed, err = s.removeLogged(ctx, tx, args)
		} else {
			removed, err = dialect.Affected(tx.ExecContext(ctx, s.sql.remove, args...))
		}
		if err != nil {
			return err
		}
		failpoint.Hit("forwarder/rows-deleted")
		if removed == int64(len(confirmed)) {
			return nil
		}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var position int64
			err := scan(&position)
			stays = append(stays, position)
			return err
		}, s.sql.stays, args...)
	})
	return removed, stays, err
}

func (s *store) removeLogged(ctx context.Context, tx *sql.Tx, args []any) (removed int64, err error) {
	var logged int64
	if s.dialect.SQLite() {
		if logged, err = dialect.Affected(tx.ExecContext(ctx, s.sql.logSent, args...)); err != nil {
			return 0, err
		}
		failpoint.Hit("forwarder/sent-logged")
		removed, err = dialect.Affected(tx.ExecContext(ctx, s.sql.remove, args...))
	} else {
		err = tx.QueryRowContext(ctx, s.sql.removeLogged, args...).Scan(&removed, &logged)
	}
	if err == nil && removed != logged {
		err = s.dialect.Unchanged("outbox_sent", fmt.Sprintf("%d rows were deleted from the outbox, and %d were inserted", removed, logged))
	}
	return removed, err
}

// charge records attempts, due times and blocked keys. found is the number of rows that still exist
// in slots of this instance.
func (s *store) charge(ctx context.Context, charges []dispatch.Charge) (found int64, err error) {
	args := s.chargeArguments(charges)
	var uncharged, unblocked int
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.charge, args...)
		if err != nil {
			return err
		}
		if found, err = result.RowsAffected(); err != nil {
			return err
		}
		failpoint.Hit("forwarder/attempt-charged")
		if result, err = tx.ExecContext(ctx, s.sql.block, args...); err != nil {
			return err
		}
		failpoint.Hit("forwarder/key-blocked")
		uncharged, unblocked = 0, 0
		if blocked, err := result.RowsAffected(); err != nil || found+blocked == 2*int64(len(charges)) {
			return err
		}
		return tx.QueryRowContext(ctx, s.sql.unchanged, args...).Scan(&uncharged, &unblocked)
	})
	// The transaction has recorded the other charges.
	switch {
	case err == nil && uncharged > 0:
		err = s.dialect.Unchanged("outbox", fmt.Sprintf("%d rows of refused messages were not updated", uncharged))
	case err == nil && unblocked > 0:
		err = s.dialect.Unchanged("blocked_keys", fmt.Sprintf("%d rows of blocked keys were not inserted", unblocked))
	}
	return found, err
}

func (s *store) chargeArguments(charges []dispatch.Charge) []any {
	var (
		positions, attempts, delays []int64
		ids, texts, reasons         []string
		unknown, after              []int64
	)
	for i, c := range charges {
		positions = append(positions, c.Message.Position)
		ids = append(ids, c.Message.ID)
		// Set, not added: charge is repeated after a commit with an unknown outcome.
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
	return []any{
		s.dialect.List(positions), s.dialect.Strings(ids), s.dialect.List(attempts),
		s.dialect.List(delays), s.dialect.Strings(texts), s.dialect.Strings(reasons), s.dialect.List(unknown),
		s.dialect.List(after), s.owner,
	}
}

func blockReason(c dispatch.Charge) string {
	if c.Cause == dispatch.Unknown {
		return outboxrow.BlockedUnknown
	}
	return outboxrow.BlockedRefused
}

func reasonOf(d dispatch.Death) string {
	if d.Exhausted {
		return outboxrow.DeadExhausted
	}
	return outboxrow.DeadUnacceptable
}

// errRemoved rolls back moveDead, because somebody else has removed the row at the same time.
var errRemoved = errors.New("forwarder: the message was removed by somebody else")

// moveDead returns false if the row no longer exists, or its slot belongs to another instance.
func (s *store) moveDead(ctx context.Context, d dispatch.Death, afterDead AfterDead) (moved bool, err error) {
	m := d.Message
	err = s.write(ctx, func(tx *sql.Tx) error {
		text, reason := clean(d.Err), reasonOf(d)
		group := parkedrows.Fingerprint(parkedrows.Cause{Reason: reason, Text: text, MessageID: m.ID})
		result, err := tx.ExecContext(ctx, s.sql.copyDead, m.Position, m.ID, text, reason, m.WasUnknown, s.owner, group)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if moved = n > 0; !moved {
			return s.unchangedIf(ctx, tx, "outbox_dead", "the row of a dead letter was not inserted", s.sql.owns, m.Position, m.ID, s.owner)
		}
		failpoint.Hit("forwarder/dead-row-written")
		if result, err = tx.ExecContext(ctx, s.sql.removeOne, m.Position, m.ID); err != nil {
			return err
		}
		if n, err = result.RowsAffected(); err != nil {
			return err
		}
		if n == 0 {
			err := s.unchangedIf(ctx, tx, "outbox", fmt.Sprintf("the row of a dead letter was not deleted (position %d)", m.Position),
				s.sql.owns, m.Position, m.ID, s.owner)
			return cmp.Or(err, errRemoved)
		}
		failpoint.Hit("forwarder/dead-row-deleted")
		if m.Key == "" {
			return nil
		}
		if afterDead == BlockKey {
			err = s.blockByDead(ctx, tx, d)
		} else {
			err = s.unblockOne(ctx, tx, m)
		}
		failpoint.Hit("forwarder/dead-key-set")
		return err
	})
	return moved, err
}

func (s *store) blockByDead(ctx context.Context, tx *sql.Tx, d dispatch.Death) error {
	n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.blockByDead, d.Message.Key, d.Message.Position, d.SuccessorsAfter))
	if err != nil || n > 0 {
		return err
	}
	// Usually an earlier message of the key blocks it already.
	var blocked bool
	if err := tx.QueryRowContext(ctx, s.sql.blocked, d.Message.Key).Scan(&blocked); err != nil || blocked {
		return err
	}
	return s.dialect.Unchanged("blocked_keys", "the row of a blocked key was not inserted")
}

func (s *store) unblockOne(ctx context.Context, tx *sql.Tx, m *dispatch.Message) error {
	n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.unblockOne, m.Key, m.Position))
	if err != nil || n > 0 || !m.BlocksKey {
		return err
	}
	return s.unchangedIf(ctx, tx, "blocked_keys", "the row of a blocked key was not deleted", s.sql.blockedBy, m.Key, m.Position)
}

// unchangedIf is called if a statement has changed no row. If the query returns true, the statement
// had to change it. Otherwise somebody else has removed the row.
func (s *store) unchangedIf(ctx context.Context, tx *sql.Tx, table, did, query string, args ...any) error {
	var exists bool
	if err := tx.QueryRowContext(ctx, query, args...).Scan(&exists); err != nil || !exists {
		return err
	}
	return s.dialect.Unchanged(table, did)
}
