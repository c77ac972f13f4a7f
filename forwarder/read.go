package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
)

// arguments returns the arguments of the query of a read.
func (s *store) arguments(read *dispatch.Read) []any {
	args := []any{read.From, s.dialect.List(read.Known), s.dialect.List(read.Slots), s.dialect.Strings(read.Keys), int64(read.Limit)}
	if !read.Refill {
		args = append(args, int64(max(1, read.Limit/2)), s.dialect.Strings(read.Topics))
	}
	if !read.Pauses.None() {
		args = append(args, s.dialect.Strings(read.Pauses.Topics), s.dialect.Strings(read.Pauses.Tenants))
	}
	return args
}

// bulkRows is the number of expected rows from which a read uses a transaction. Outside
// of a transaction, lib/pq receives payloads as hexadecimal digits, see
// [dialect.Reader.AsText]. For so many rows, this costs more than the round trips of a
// transaction.
const bulkRows = 256

// errFull ends a read that has reached its limit of bytes.
var errFull = errors.New("forwarder: enough was read")

// found is the result of a read.
type found struct {
	rows    []*dispatch.Message
	reach   dispatch.Reach
	unowned bool // some slots have no owner; not known after a refill
}

// rows reads rows of the outbox in the order of their positions.
func (s *store) rows(ctx context.Context, read *dispatch.Read) (found, error) {
	if read.Tidy {
		if err := s.tidy(ctx); err != nil {
			return found{}, err
		}
	}
	// When the limit of bytes is reached, unread rows remain in the connection, which
	// must then be closed. This is rare, because the limit of rows is computed from
	// their average size.
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	r := &reader{topics: map[string]string{}, began: time.Now(), bytes: read.Bytes, giveUp: giveUp}
	var looked ahead
	var err error
	if read.Lookahead {
		looked, err = s.lookAhead(ctx, read, r)
	} else {
		err = s.readRows(ctx, read, r)
	}
	full := errors.Is(err, errFull)
	if err != nil && !full {
		return found{}, err
	}
	if !read.Lookahead { // says nothing about the number of rows of the next sweep
		s.bulk = len(r.rows) >= bulkRows && s.reader.AsText()
	}
	got := found{rows: r.rows, reach: read.Reach(r.rows, full), unowned: r.state.unowned}
	if read.Lookahead {
		got.reach = looked.complete(r.rows)
		got.reach.End = r.state.highest
	}
	got.reach.Horizon, got.reach.Ceiling = r.state.horizon, r.state.ceiling
	if got.reach.Pauses, err = decodePauses(r.state.pauses); err != nil {
		return found{}, err
	}
	if !read.Pauses.None() && got.reach.Covered == dispatch.Everything {
		got.reach.Highest = max(got.reach.Highest, r.state.highest) // includes rows that the query left out
	}
	slices.SortFunc(got.rows, func(a, b *dispatch.Message) int { return cmp.Compare(a.Position, b.Position) })
	return got, nil
}

// readRows runs the queries of a read. Usually this is a single query outside of a
// transaction, which needs only one round trip. A forwarder without work first checks
// whether there are rows, because this check costs the database less than the read.
func (s *store) readRows(ctx context.Context, read *dispatch.Read, r *reader) error {
	args := s.arguments(read)
	switch {
	case s.inTx, s.bulk, !read.Pauses.None():
		return s.readInTx(ctx, read, args, r)
	case read.Refill:
		return s.readAlone(ctx, s.sql.refill, args, r.scanAll)
	}
	polled := s.quiet && read.Poll && len(read.Known) == 0
	if polled {
		err := s.readWithState(ctx, s.sql.stateAlone, args[:1], r)
		if err != nil || !r.state.rows {
			return err
		}
		r.began = time.Now()
	}
	err := s.readWithState(ctx, s.sql.readWithState, args, r)
	// If the check has found rows, but this instance reads none of them, the next poll
	// skips the check.
	s.quiet = err == nil && len(r.rows) == 0 && !polled
	return err
}

// readWithState runs a query whose first row contains an outboxState.
func (s *store) readWithState(ctx context.Context, query dialect.Statement, args []any, r *reader) error {
	err := s.readAlone(ctx, query, args, func(rows *sql.Rows) error {
		if err := r.scanState(rows); err != nil {
			return err
		}
		if r.state.replica { // its rows could be published, but never deleted
			return dialect.ErrReplica
		}
		return r.scanAll(rows)
	})
	if r.state.serializable {
		s.alone = false
	}
	s.inTx = r.state.blocked || !s.alone
	return err
}

func (s *store) readAlone(ctx context.Context, query dialect.Statement, args []any, scan func(rows *sql.Rows) error) error {
	return dialect.LeaveReplica(ctx, s.db, s.reader.Read(ctx, query, args, scan))
}

// readInTx reads like readRows, but in a transaction with two queries. A transaction is
// needed
//   - while keys are blocked (see stateOfRead), while something is paused, or when many
//     rows are expected,
//   - if the default isolation level is SERIALIZABLE, so that reads do not conflict
//     with producers,
//   - for drivers that may need more than one round trip for a query.
func (s *store) readInTx(ctx context.Context, read *dispatch.Read, args []any, r *reader) error {
	return s.read(ctx, func(tx *sql.Tx) error {
		r.rows, r.state, r.began = nil, outboxState{}, time.Now()
		query, queryPaused := s.sql.refill, s.sql.refillPaused
		if !read.Refill {
			query, queryPaused = s.sql.read, s.sql.readPaused
			if err := r.state.scan(tx.QueryRowContext(ctx, s.sql.snapshot)); err != nil {
				return err
			}
			s.inTx = r.state.blocked || !s.alone
		}
		if !read.Pauses.None() {
			query = queryPaused
		}
		rows, err := tx.QueryContext(ctx, query.Query(), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := r.scanAll(rows); err != nil {
			return err
		}
		return rows.Err()
	})
}
