package forwarder

import (
	"context"
	"database/sql"
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

	refills []refill // makes it a refill
}

// refill is a lane that is read, as it was when the read began.
type refill struct {
	lane  *lane
	epoch int
}

// rows reads the outbox. They come in order of their positions.
func (s *store) rows(ctx context.Context, req request) ([]*row, reached, error) {
	if req.tidy {
		if err := s.tidy(ctx); err != nil {
			return nil, reached{}, err
		}
	}
	query := s.sql.refill
	args := []any{
		req.from, s.dialect.List(req.known), s.dialect.List(req.slots), s.dialect.Strings(req.keys), req.limit, req.bytes,
	}
	if req.refills == nil {
		query = s.sql.read
		args = append(args, max(1, req.limit/2), s.dialect.Strings(req.topics))
	}
	var (
		found []*row
		at    reached
	)
	err := s.read(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scan(rows, &at)
			if err != nil {
				return err
			}
			if r != nil {
				found = append(found, r)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, reached{}, err
	}
	slices.SortFunc(found, byPosition)
	at.highest, at.covered = req.coverage(found)
	return found, at, nil
}

func scan(rows *sql.Rows, at *reached) (*row, error) {
	var (
		position, slot, attempts, due sql.NullInt64
		id, topic, key                sql.NullString
		payload, metadata             []byte
	)
	err := rows.Scan(&at.horizon, &at.ceiling, &at.unowned, &position, &slot, &id, &topic, &key, &payload, &metadata, &attempts, &due)
	if err != nil || !position.Valid {
		return nil, err
	}
	return &row{
		position: position.Int64,
		id:       id.String,
		topic:    topic.String,
		key:      key.String,
		slot:     slot.Int64,
		payload:  payload,
		metadata: metadata,
		attempts: int(attempts.Int64),
		due:      due.Int64 == 1,
	}, nil
}

// coverage says up to which position everything that may be read was returned,
// and the highest one among the rows that are found by position.
func (req request) coverage(found []*row) (highest, covered int64) {
	inOrder, size := 0, 0
	for _, r := range found {
		size += r.size()
		if !r.due {
			inOrder++
			highest = r.position
		}
	}
	switch {
	case inOrder >= req.limit:
		return highest, highest
	case size >= req.bytes:
		return highest, found[len(found)-1].position
	}
	return highest, everything
}
