package forwarder

import (
	"context"
	"database/sql"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/slot"
)

// store is the tables as the forwarder sees them.
type store struct {
	db      *sql.DB
	dialect dialect.Dialect
	sql     queries
	owner   string

	destination string // or "" if it is not known

	keepSent bool // what is removed
}

func newStore(db *sql.DB, d dialect.Dialect) *store {
	host, _ := os.Hostname() // for people who look at the table; the rest makes it unique
	return &store{db: db, dialect: d, sql: newQueries(d), owner: host + " " + uuid.NewString()}
}

func (s *store) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, s.db, s.dialect.Read(ctx, s.db, work))
}

func (s *store) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, s.db, s.dialect.Write(ctx, s.db, work))
}

// leaseRequest is what an instance tells of itself, and wants.
type leaseRequest struct {
	kept   []int64 // owned, to be renewed
	back   []int64 // owned, to be given back
	take   bool    // what is free, up to the fair share
	avoid  []int64 // and is not one of these
	length time.Duration
}

// lease renews and gives back slots that are owned, takes free ones, and says
// which are owned now. Its error is an otherDestinationError if an instance that
// sends elsewhere may be at work.
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
		if err := tx.QueryRowContext(ctx, s.sql.instances).Scan(&got.instances, &slots); err != nil {
			return err
		}
		if slots < slot.Count {
			if _, err := tx.ExecContext(ctx, s.sql.slots); err != nil {
				return err
			}
			slots = slot.Count
		}
		got.share = (slots + got.instances - 1) / got.instances
		take := 0
		if req.take {
			take = max(0, got.share-len(req.kept))
		}
		rows, err := tx.QueryContext(ctx, s.sql.lease,
			s.owner, req.length.Milliseconds(), s.dialect.List(req.kept), take, s.dialect.List(req.avoid))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var leased int64
			if err := rows.Scan(&leased); err != nil {
				return err
			}
			got.slots = append(got.slots, leased)
		}
		failpoint.Hit("forwarder/slots-taken")
		return rows.Err()
	})
	failpoint.Hit("forwarder/leased")
	return got, err
}

// leave gives everything back, so that others have it at once. That this
// instance was there stays known until another one takes its place: one with
// another destination says so.
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

// tidy removes holds whose head is gone.
func (s *store) tidy(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		positions, keys, err := s.ghosts(ctx, tx)
		if err == nil && len(keys) > 0 {
			slots := make([]int64, len(keys))
			for i, key := range keys {
				slots[i] = int64(slot.Of("", key))
			}
			err = s.lift(ctx, tx, positions, keys, slots)
		}
		failpoint.Hit("forwarder/holds-tidied")
		return err
	})
}

// lift removes the holds of these heads from keys in slots of ours. What waits
// for another one was passed by the instance that has its slot, which has to
// come back to it first.
func (s *store) lift(ctx context.Context, tx *sql.Tx, positions []int64, keys []string, slots []int64) error {
	_, err := tx.ExecContext(ctx, s.sql.lift,
		s.dialect.List(positions), s.dialect.Strings(keys), s.dialect.List(slots), s.owner)
	return err
}

// ghosts returns the heads that are gone.
func (s *store) ghosts(ctx context.Context, tx *sql.Tx) (positions []int64, keys []string, err error) {
	rows, err := tx.QueryContext(ctx, s.sql.ghosts)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			position int64
			key      string
		)
		if err := rows.Scan(&position, &key); err != nil {
			return nil, nil, err
		}
		positions, keys = append(positions, position), append(keys, key)
	}
	return positions, keys, rows.Err()
}
