package forwarder

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/schema"
)

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

// bulkRows is the number of expected rows from which a read uses a transaction. Outside of one,
// lib/pq receives payloads as hexadecimal digits, see [dialect.Reader.AsText], which then costs
// more than the round trips.
const bulkRows = 256

var errFull = errors.New("forwarder: enough was read")

type found struct {
	rows    []*dispatch.Message
	reach   dispatch.Reach
	unowned bool // some slots have no owner; not known after a refill
	rescan  bool // there may be new rows below the cursor
}

func (s *store) rows(ctx context.Context, read *dispatch.Read) (found, error) {
	if read.Tidy {
		if err := s.tidy(ctx); err != nil {
			return found{}, err
		}
	}
	// At the limit of bytes, unread rows remain in the connection, which must be closed. This is
	// rare, because the limit of rows comes from their average size.
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
	fellBack, err := s.checkSequence(ctx, r.state.last.Int64)
	if err != nil {
		return found{}, err
	}
	if !read.Lookahead && !read.State { // says nothing about the number of rows of the next sweep
		s.bulk = len(r.rows) >= bulkRows && s.reader.AsText()
	}
	got := found{rows: r.rows, reach: read.Reach(r.rows, full), unowned: r.state.unowned, rescan: fellBack}
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

// checkSequence reports whether the sequence of positions has fallen below last (0 if unknown), for
// example after a switch to a logical replica. New rows then get positions below the cursor. If
// older rows with higher positions still wait, the new ones would overtake them, so the error
// contains the SQL that repairs the order.
func (s *store) checkSequence(ctx context.Context, last int64) (fellBack bool, err error) {
	if last == 0 || last >= s.last {
		s.last = max(s.last, last)
		return false, nil
	}
	if err := schema.Check(ctx, s.db, s.dialect.Config()); err != nil && !errors.Is(err, schema.ErrLayout) {
		return false, err
	}
	s.last = last
	return true, nil
}

// readRows usually needs one query outside of a transaction, in one round trip. A forwarder without
// work first checks whether there are rows, which costs the database less than the read.
func (s *store) readRows(ctx context.Context, read *dispatch.Read, r *reader) error {
	args := s.arguments(read)
	switch {
	case s.inTx, s.bulk && !read.State, !read.Pauses.None():
		return s.readInTx(ctx, read, args, r)
	case read.State:
		return s.readWithState(ctx, s.sql.stateAlone, args[:1], r)
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
	// If this instance reads none of the rows that were found, the next poll skips the check.
	s.quiet = err == nil && len(r.rows) == 0 && !polled
	return err
}

func (s *store) readWithState(ctx context.Context, query dialect.Statement, args []any, r *reader) error {
	err := s.readAlone(ctx, query, args, func(rows *sql.Rows) error {
		if err := r.scanState(rows); err != nil {
			return err
		}
		if err := r.state.writable(); err != nil {
			return err
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
	return s.reader.Read(ctx, query, args, scan)
}

// readInTx reads in a transaction with two queries. It is needed
//
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
			err := r.state.scan(tx.QueryRowContext(ctx, s.sql.snapshot))
			if err = cmp.Or(err, r.state.writable()); err != nil {
				return err
			}
			s.inTx = r.state.blocked || !s.alone
		}
		if read.State {
			return nil
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

// outboxState is what a read returns in addition to the rows, see snapshotQuery.
type outboxState struct {
	horizon, ceiling int64
	unowned          bool
	blocked          bool          // some keys are blocked
	serializable     bool          // the default isolation level is SERIALIZABLE
	readOnly         bool          // see readOnlyServer
	rows             bool          // there are rows to read; set only by stateAlone and peek
	pauses           string        // see listPauses
	highest          int64         // highest position in the outbox; 0 if the read is not a lookahead and nothing is paused
	last             sql.NullInt64 // see lastPosition
}

func (s *outboxState) scan(row *sql.Row) error {
	return row.Scan(&s.horizon, &s.ceiling, &s.unowned, &s.blocked, &s.pauses, &s.highest, &s.last, &s.readOnly)
}

// writable returns an error if rows of this server could be published, but not deleted.
func (s *outboxState) writable() error {
	if s.readOnly {
		return dialect.ErrReadOnly
	}
	return nil
}

// reader scans the rows of one read into the same fields, to allocate little memory.
type reader struct {
	rows  []*dispatch.Message
	state outboxState

	bytes  int    // limit of bytes
	giveUp func() // called at the limit, so that the driver stops receiving rows

	topics  map[string]string // messages with the same topic share one string
	tenants tenants
	began   time.Time // local time that corresponds to the {clock} of the query

	topic      sql.RawBytes
	successors sql.NullInt64
	millis     int64 // when the row was stored, by the clock of the database
	waited     int64 // time since the message could first be sent, in milliseconds

	created       string // the time in createdMillis as a string; rows that were stored together share one string
	createdMillis int64
}

func (r *reader) scanState(rows *sql.Rows) error {
	if !rows.Next() {
		return cmp.Or(rows.Err(), errors.New("forwarder: a read has returned nothing"))
	}
	var flags int64
	var none [6]sql.RawBytes
	err := rows.Scan(&r.state.horizon, &none[0], &none[1], &none[2], &none[3], &none[4], &r.state.pauses, &none[5], &r.state.last,
		&r.state.ceiling, &flags, new(sql.RawBytes))
	r.state.unowned, r.state.blocked = flags&unownedSlots != 0, flags&blockedKeys != 0
	r.state.serializable, r.state.readOnly = flags&serializable != 0, flags&readOnly != 0
	r.state.rows = flags&rowsToRead != 0
	return err
}

func (r *reader) scanAll(rows *sql.Rows) error {
	var some []dispatch.Message // allocated together
	for size := 0; rows.Next(); {
		if size >= r.bytes {
			r.giveUp()
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
		r.rows = append(r.rows, m)
	}
	return nil
}

func (r *reader) scan(rows *sql.Rows, m *dispatch.Message) error {
	err := rows.Scan(&m.Position, &m.Slot, &m.ID, &r.topic, &m.Key, &m.Payload, &m.Metadata, &m.Attempts, &r.successors,
		&r.millis, &r.waited, &m.Due)
	known, ok := r.topics[string(r.topic)]
	if !ok {
		known = string(r.topic)
		r.topics[known] = known
	}
	m.Topic = known
	if m.Attempts < 0 { // see leaveOutPaused
		m.Paused, m.Attempts, m.Payload = true, 0, nil
	}
	m.Tenant = r.tenants.of(m.Metadata)
	m.BlocksKey, m.SuccessorsAfter = r.successors.Valid, r.successors.Int64
	if r.created == "" || r.createdMillis != r.millis {
		r.created, r.createdMillis = meta.Stamp(time.UnixMilli(r.millis)), r.millis
	}
	m.Created, m.Since = r.created, r.began.Add(-time.Duration(r.waited)*time.Millisecond)
	return err
}

// tenants gives messages with the same tenant one string.
type tenants struct{ last string }

var tenantKey = []byte(`"` + meta.TenantID + `"`)

// of returns the tenant in metadata, or "". Usually it does not decode them, because the forwarder
// does this later, when it publishes the message.
func (t *tenants) of(metadata []byte) string {
	_, rest, found := bytes.Cut(metadata, tenantKey)
	if !found {
		return ""
	}
	rest = bytes.TrimLeft(rest, ": ")
	if bytes.IndexByte(metadata, '\\') < 0 && len(rest) > 0 && rest[0] == '"' {
		if end := bytes.IndexByte(rest[1:], '"'); end >= 0 {
			if value := rest[1 : 1+end]; string(value) != t.last {
				t.last = outboxrow.Label(string(value))
			}
			return t.last
		}
	}
	decoded, err := outboxrow.DecodeMetadata(metadata)
	if tenant := decoded[meta.TenantID]; err == nil && strings.IndexByte(tenant, 0) < 0 {
		return outboxrow.Label(tenant)
	}
	return "" // check reports a damaged row
}
