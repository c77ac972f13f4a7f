package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/meta"
)

// statement returns the query of a read and its arguments.
func (s *store) statement(read *dispatch.Read) (query string, args []any) {
	args = []any{read.From, s.dialect.List(read.Known), s.dialect.List(read.Slots), s.dialect.Strings(read.Keys), read.Limit}
	if read.Refill {
		return s.sql.refill, args
	}
	return s.sql.read, append(args, max(1, read.Limit/2), s.dialect.Strings(read.Topics))
}

// errFull ends a read that has reached its limit of bytes.
var errFull = errors.New("forwarder: enough was read")

// rows reads rows of the outbox, in the order of their positions. If the read is not a
// refill of certain keys, it also returns whether any slots have no owner.
func (s *store) rows(ctx context.Context, read *dispatch.Read) (found []*dispatch.Message, at dispatch.Reach, unowned bool, err error) {
	if read.Tidy {
		if err := s.tidy(ctx); err != nil {
			return nil, at, false, err
		}
	}
	query, args := s.statement(read)
	// When the limit of bytes is reached, unread rows remain in the connection, which
	// must then be closed. This is rare, because the limit of rows is computed from
	// their average size.
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var horizon, ceiling int64
	err = s.read(ctx, func(tx *sql.Tx) error {
		found = nil
		r := &reader{topics: map[string]string{}, began: time.Now()}
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
			if err := r.scan(rows, m); err != nil {
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

// reader scans rows. It is allocated once per read, and its fields with it.
type reader struct {
	topics map[string]string // messages with the same topic share one string
	began  time.Time         // the time of {clock}

	topic      sql.RawBytes
	successors sql.NullInt64
	millis     int64 // when the row was stored, by the clock of the database
	waited     int64 // how long the message has been waiting to be sent, in milliseconds

	created       string // the stamp of createdMillis: rows that were stored together share it
	createdMillis int64
}

// scan fills m.
func (r *reader) scan(rows *sql.Rows, m *dispatch.Message) error {
	err := rows.Scan(&m.Position, &m.Slot, &m.ID, &r.topic, &m.Key, &m.Payload, &m.Metadata, &m.Attempts, &r.successors,
		&r.millis, &r.waited, &m.Due)
	known, ok := r.topics[string(r.topic)]
	if !ok {
		known = string(r.topic)
		r.topics[known] = known
	}
	m.Topic = known
	m.BlocksKey, m.SuccessorsAfter = r.successors.Valid, r.successors.Int64
	if r.created == "" || r.createdMillis != r.millis {
		r.created, r.createdMillis = meta.Stamp(time.UnixMilli(r.millis)), r.millis
	}
	m.Created, m.Since = r.created, r.began.Add(-time.Duration(r.waited)*time.Millisecond)
	return err
}
