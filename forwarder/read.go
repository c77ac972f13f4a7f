package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"slices"
)

// request says what to read of the outbox.
type request struct {
	tidy   bool // remove holds without a head first
	from   int64
	known  []int64
	slots  []int64
	limit  int
	bytes  int
	keys   []string // left out; those that are meant if it is a refill
	topics []string // left out

	settled sight

	refills []refill // makes it a refill
}

// refill is a lane that is read, as it was when the read began.
type refill struct {
	lane  *lane
	epoch int
}

// statement is what is asked for req.
func (s *store) statement(req request) (query string, args []any) {
	args = []any{req.from, s.dialect.List(req.known), s.dialect.List(req.slots), s.dialect.Strings(req.keys), req.limit}
	if req.refills != nil {
		return s.sql.refill, args
	}
	return s.sql.read, append(args, max(1, req.limit/2), s.dialect.Strings(req.topics))
}

// errFull ends a read that has all the bytes it may take.
var errFull = errors.New("forwarder: enough was read")

// rows reads the outbox. They come in order of their positions.
func (s *store) rows(ctx context.Context, req request) ([]*row, reached, error) {
	if req.tidy {
		if err := s.tidy(ctx); err != nil {
			return nil, reached{}, err
		}
	}
	query, args := s.statement(req)
	// What is too much is not read from the connection, which is given up for
	// that. It is rare: the limit goes by the size that messages have had.
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		found []*row
		at    reached
	)
	err := s.read(ctx, func(tx *sql.Tx) error {
		found, at = nil, reached{settled: req.settled}
		if req.refills == nil {
			if err := tx.QueryRowContext(ctx, s.sql.snapshot).Scan(&at.horizon, &at.ceiling, &at.unowned); err != nil {
				return err
			}
		}
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		var some []row // allocated together
		topics := map[string]string{}
		for size := 0; rows.Next(); {
			if size >= req.bytes {
				giveUp()
				return errFull
			}
			if len(some) == 0 {
				some = make([]row, 32)
			}
			r := &some[0]
			some = some[1:]
			if err := r.scan(rows, topics); err != nil {
				return err
			}
			size += r.size()
			found = append(found, r)
		}
		return rows.Err()
	})
	full := errors.Is(err, errFull)
	if err != nil && !full {
		return nil, reached{}, err
	}
	at.highest, at.covered = req.coverage(found, full)
	slices.SortFunc(found, byPosition)
	return found, at, nil
}

// scan fills r. Of each topic there is one string in a batch.
func (r *row) scan(rows *sql.Rows, topics map[string]string) error {
	var (
		topic      sql.RawBytes
		successors sql.NullInt64
	)
	err := rows.Scan(&r.position, &r.slot, &r.id, &topic, &r.key, &r.payload, &r.metadata, &r.attempts, &successors, &r.due)
	known, ok := topics[string(topic)]
	if !ok {
		known = string(topic)
		topics[known] = known
	}
	r.topic = known
	r.heldByItself, r.successorsAfter = successors.Valid, successors.Int64
	return err
}

// coverage says up to which position everything that may be read was returned,
// and the highest one among the rows that are found by position. These come
// last.
func (req request) coverage(found []*row, full bool) (highest, covered int64) {
	inOrder := 0
	for _, r := range found {
		if !r.due {
			inOrder++
			highest = r.position
		}
	}
	switch {
	case full && inOrder == 0:
		return 0, req.from
	case full || inOrder >= req.limit:
		return highest, highest
	}
	return highest, everything
}
