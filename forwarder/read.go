package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/watermill-once/once/internal/dispatch"
)

// statement returns the query of a read.
func (s *store) statement(read *dispatch.Read) (query string, args []any) {
	args = []any{read.From, s.dialect.List(read.Known), s.dialect.List(read.Slots), s.dialect.Strings(read.Keys), read.Limit}
	if read.Refill {
		return s.sql.refill, args
	}
	return s.sql.read, append(args, max(1, read.Limit/2), s.dialect.Strings(read.Topics))
}

// errFull ends a read that has as many bytes as it may.
var errFull = errors.New("forwarder: enough was read")

// rows reads the outbox. It returns the rows in the order of their positions. A
// sweep also reports whether slots have no owner.
func (s *store) rows(ctx context.Context, read *dispatch.Read) (found []*dispatch.Message, at dispatch.Reach, unowned bool, err error) {
	if read.Tidy {
		if err := s.tidy(ctx); err != nil {
			return nil, at, false, err
		}
	}
	query, args := s.statement(read)
	// Rows over the limit of bytes stay unread in the connection, which has to be
	// closed then. This is rare, because the limit of rows goes by their size.
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var horizon, ceiling int64
	err = s.read(ctx, func(tx *sql.Tx) error {
		found = nil
		if !read.Refill {
			if err := tx.QueryRowContext(ctx, s.sql.snapshot).Scan(&horizon, &ceiling, &unowned); err != nil {
				return err
			}
		}
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		var some []dispatch.Message // allocated together
		topics := map[string]string{}
		for size := 0; rows.Next(); {
			if size >= read.Bytes {
				giveUp()
				return errFull
			}
			if len(some) == 0 {
				some = make([]dispatch.Message, 32)
			}
			m := &some[0]
			some = some[1:]
			if err := scan(rows, m, topics); err != nil {
				return err
			}
			size += m.Size()
			found = append(found, m)
		}
		return rows.Err()
	})
	full := errors.Is(err, errFull)
	if err != nil && !full {
		return nil, at, false, err
	}
	at = read.Reach(found, full)
	at.Horizon, at.Ceiling = horizon, ceiling
	slices.SortFunc(found, func(a, b *dispatch.Message) int { return cmp.Compare(a.Position, b.Position) })
	return found, at, unowned, nil
}

// scan fills m. Messages with the same topic share one string.
func scan(rows *sql.Rows, m *dispatch.Message, topics map[string]string) error {
	var (
		topic      sql.RawBytes
		successors sql.NullInt64
	)
	err := rows.Scan(&m.Position, &m.Slot, &m.ID, &topic, &m.Key, &m.Payload, &m.Metadata, &m.Attempts, &successors, &m.Due)
	known, ok := topics[string(topic)]
	if !ok {
		known = string(topic)
		topics[known] = known
	}
	m.Topic = known
	m.BlocksKey, m.SuccessorsAfter = successors.Valid, successors.Int64
	return err
}
