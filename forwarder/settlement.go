package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
)

// settlement is what is to be recorded of messages whose outcome is known.
type settlement struct {
	confirmed []*row
	charges   []charge
	deaths    []death
}

// charge has a message wait, with its ordering key held.
type charge struct {
	row      *row
	attempts int // 1, or 0 if nothing is charged
	delay    time.Duration
	err      string
	hold     string // why
	after    int64  // the successors lie above it
}

// death makes a message a dead letter.
type death struct {
	row    *row
	size   int
	err    string
	reason string
	after  int64 // the successors lie above it
}

func (s settlement) empty() bool {
	return len(s.confirmed) == 0 && len(s.charges) == 0 && len(s.deaths) == 0
}

// settled is what a settlement came to. What is not done can be done again.
type settled struct {
	confirmed bool
	charges   bool
	deaths    int  // how many, from the first
	vanished  bool // rows were not there any more, or their slots not ours
	wrote     bool // something was changed, by a transaction that has ended
	err       error
}

func (s *store) settle(ctx context.Context, batch settlement, afterDead AfterDead) settled {
	var (
		done settled
		errs []error
	)
	if len(batch.confirmed) > 0 {
		failpoint.Hit("forwarder/remove")
		removed, err := s.remove(ctx, batch.confirmed)
		failpoint.Hit("forwarder/removed")
		done.confirmed = err == nil
		done.wrote = err == nil && removed > 0
		errs = append(errs, err)
	}
	if len(batch.charges) > 0 {
		failpoint.Hit("forwarder/charge")
		charged, err := s.charge(ctx, batch.charges)
		failpoint.Hit("forwarder/charged")
		done.charges = err == nil
		done.vanished = charged < int64(len(batch.charges))
		done.wrote = done.wrote || err == nil && charged > 0
		errs = append(errs, err)
	}
	for _, d := range batch.deaths {
		failpoint.Hit("forwarder/bury")
		buried, err := s.bury(ctx, d, afterDead)
		failpoint.Hit("forwarder/buried")
		if err != nil {
			errs = append(errs, err)
			break
		}
		done.deaths++
		done.vanished = done.vanished || !buried
		done.wrote = done.wrote || buried
	}
	done.err = errors.Join(errs...)
	return done
}

// remove deletes confirmed rows and lifts the holds that name them. It does no
// harm to do it again, or to be no longer the owner: confirmed is confirmed, and
// holds are then left to the new one. It returns how many there were.
func (s *store) remove(ctx context.Context, rows []*row) (removed int64, err error) {
	var (
		positions, heads, slots []int64
		ids, keys               []string
	)
	for _, r := range rows {
		positions = append(positions, r.position)
		ids = append(ids, r.id)
		if r.heldByItself {
			heads, slots = append(heads, r.position), append(slots, r.slot)
			keys = append(keys, r.key)
		}
	}
	err = s.write(ctx, func(tx *sql.Tx) error {
		removed = 0
		if len(heads) > 0 {
			if err := s.lift(ctx, tx, heads, keys, slots); err != nil {
				return err
			}
			failpoint.Hit("forwarder/hold-lifted")
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

// charge returns how many rows it found.
func (s *store) charge(ctx context.Context, charges []charge) (found int64, err error) {
	var (
		positions, attempts, delays []int64
		ids, texts, reasons         []string
		unknown, after              []int64
	)
	for i, c := range charges {
		positions = append(positions, c.row.position)
		ids = append(ids, c.row.id)
		// Not one more than there are by now: after a commit of unknown outcome it is done again.
		attempts = append(attempts, min(int64(c.row.attempts)+int64(c.attempts), math.MaxInt32))
		delays = append(delays, c.delay.Milliseconds())
		texts = append(texts, c.err)
		reasons = append(reasons, c.hold)
		after = append(after, c.after)
		unknown = append(unknown, 0)
		if c.row.unknown {
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
		_, err = tx.ExecContext(ctx, s.sql.hold, args...)
		failpoint.Hit("forwarder/key-held")
		return err
	})
	return found, err
}

// errRemoved rolls a burial back: somebody has removed the row meanwhile.
var errRemoved = errors.New("forwarder: the message was removed by somebody else")

// bury returns false if the row is not there.
func (s *store) bury(ctx context.Context, d death, afterDead AfterDead) (buried bool, err error) {
	r := d.row
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.bury, r.position, r.id, d.err, d.reason, r.unknown, s.owner)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil || n == 0 {
			return err
		}
		buried = true
		failpoint.Hit("forwarder/letter-written")
		if result, err = tx.ExecContext(ctx, s.sql.removeOne, r.position, r.id); err != nil {
			return err
		}
		if n, err = result.RowsAffected(); err != nil {
			return err
		}
		if n == 0 {
			return errRemoved
		}
		failpoint.Hit("forwarder/dead-row-deleted")
		if r.key == "" {
			return nil
		}
		if afterDead == BlockKey {
			_, err = tx.ExecContext(ctx, s.sql.holdDead, r.key, r.position, d.after)
		} else {
			_, err = tx.ExecContext(ctx, s.sql.liftOne, r.key, r.position)
		}
		failpoint.Hit("forwarder/dead-key-set")
		return err
	})
	return buried, err
}
