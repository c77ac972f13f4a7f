package forwarder

import (
	"context"
	"database/sql"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
)

type store struct {
	db      *sql.DB
	dialect dialect.Dialect
	sql     queries
	owner   string

	destination string // "" if it is unknown

	keepSent bool // removed rows are moved to the sent log

	// From here on, only the running read uses the fields.
	reader *dialect.Reader

	alone bool // reads can be single queries outside of a transaction
	inTx  bool // the next read must be in a transaction
	bulk  bool // the next read should be in a transaction, because it will return many rows
	quiet bool // the last sweep found no row

	last int64 // last position of the sequence, as of the last read
}

func newStore(db *sql.DB, d dialect.Dialect) *store {
	host, _ := os.Hostname() // the hostname helps people who read the table; the UUID makes the owner unique
	s := &store{db: db, dialect: d, sql: newQueries(d), owner: host + " " + uuid.NewString(), reader: d.Reader(db)}
	s.alone = s.reader.Usable()
	s.inTx = !s.alone
	return s
}

func (s *store) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return s.dialect.Read(ctx, s.db, work)
}

func (s *store) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return s.dialect.Write(ctx, s.db, work)
}

type leaseRequest struct {
	kept   []int64 // slots of this instance to renew
	back   []int64 // slots of this instance to give back
	take   bool    // whether to take free slots, up to the share of this instance
	avoid  []int64 // free slots that must not be taken
	length time.Duration

	// Another instance counts, and gets a share of the slots, if its lease is longer than this.
	counted time.Duration
}

// lease renews, gives back and takes slots, and returns those that this instance then owns. It
// returns an otherDestinationError if an instance with another destination may run.
func (s *store) lease(ctx context.Context, req leaseRequest) (tenancy, error) {
	var got tenancy
	err := s.write(ctx, func(tx *sql.Tx) error {
		got = tenancy{}
		var err error
		if got.before, err = s.enrol(ctx, tx, req.length); err != nil {
			return err
		}
		for _, step := range []struct {
			query string
			args  []any
		}{
			{s.sql.expel, nil},
			{s.sql.release, []any{s.owner, s.dialect.List(req.back)}},
		} {
			if _, err := tx.ExecContext(ctx, step.query, step.args...); err != nil {
				return err
			}
		}
		failpoint.Hit("forwarder/enrolled")
		var slots int
		if err := tx.QueryRowContext(ctx, s.sql.instances, s.owner, req.counted.Milliseconds()).Scan(&got.instances, &slots); err != nil {
			return err
		}
		if slots < outboxrow.Slots {
			if _, err := tx.ExecContext(ctx, s.sql.slots); err != nil {
				return err
			}
			slots = outboxrow.Slots
		}
		got.share = (slots + got.instances - 1) / got.instances
		take := 0
		if req.take {
			take = max(0, got.share-len(req.kept))
		}
		err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var leased int64
			err := scan(&leased)
			got.slots = append(got.slots, leased)
			return err
		}, s.sql.lease, s.owner, req.length.Milliseconds(), s.dialect.List(req.kept), take, s.dialect.List(req.avoid))
		failpoint.Hit("forwarder/slots-taken")
		return err
	})
	failpoint.Hit("forwarder/leased")
	return got, err
}

// leave gives all slots back at once. The row of this instance stays, and tells its successor
// whether the destination has changed.
func (s *store) leave(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		for _, query := range []string{s.sql.releaseAll, s.sql.resign} {
			failpoint.Hit("forwarder/leave")
			if _, err := tx.ExecContext(ctx, query, s.owner); err != nil {
				return err
			}
		}
		failpoint.Hit("forwarder/resigned")
		return nil
	})
}

func (s *store) tidy(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		positions, keys, err := s.headless(ctx, tx)
		if err == nil && len(keys) > 0 {
			slots := make([]int64, len(keys))
			for i, key := range keys {
				slots[i] = int64(outboxrow.SlotOf("", key))
			}
			err = s.unblock(ctx, tx, positions, keys, slots)
		}
		failpoint.Hit("forwarder/blocked-keys-tidied")
		return err
	})
}

// unblock unblocks keys in slots of this instance. Only the owner may, because it must read the
// waiting messages of the key again, which its cursor has passed.
func (s *store) unblock(ctx context.Context, tx *sql.Tx, positions []int64, keys []string, slots []int64) error {
	args := []any{s.dialect.List(positions), s.dialect.Strings(keys), s.dialect.List(slots), s.owner}
	n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.unblock, args...))
	if err != nil || n == int64(len(keys)) {
		return err
	}
	return s.unchangedIf(ctx, tx, "blocked_keys", "rows of keys that are not blocked any more were not deleted", s.sql.stillBlocked, args...)
}

func (s *store) headless(ctx context.Context, tx *sql.Tx) (positions []int64, keys []string, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			position int64
			key      string
		)
		err := scan(&position, &key)
		positions, keys = append(positions, position), append(keys, key)
		return err
	}, s.sql.headless)
	return positions, keys, err
}
