package forwarder

import (
	"cmp"
	"database/sql"
	"errors"
	"time"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/meta"
)

// outboxState contains values that a read returns in addition to the rows, see
// snapshotQuery.
type outboxState struct {
	horizon, ceiling int64
	unowned          bool
	blocked          bool   // some keys are blocked
	serializable     bool   // the default isolation level is SERIALIZABLE
	replica          bool   // the server accepts no writes
	rows             bool   // there are rows to read; set only by stateAlone and peek
	pauses           string // see listPauses
	highest          int64  // highest position in the outbox; 0 if the read is not a lookahead and nothing is paused
}

// scan scans the result of snapshotQuery.
func (s *outboxState) scan(row *sql.Row) error {
	return row.Scan(&s.horizon, &s.ceiling, &s.unowned, &s.blocked, &s.pauses, &s.highest)
}

// reader scans the rows of one read. It reuses its fields for each row, so that
// scanning allocates little memory.
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

// scanState scans the first row of readWithState.
func (r *reader) scanState(rows *sql.Rows) error {
	if !rows.Next() {
		return cmp.Or(rows.Err(), errors.New("forwarder: a read has returned nothing"))
	}
	var flags int64
	var none [7]sql.RawBytes
	err := rows.Scan(&r.state.horizon, &none[0], &none[1], &none[2], &none[3], &none[4], &r.state.pauses, &none[5], &none[6],
		&r.state.ceiling, &flags, new(sql.RawBytes))
	r.state.unowned, r.state.blocked = flags&unownedSlots != 0, flags&blockedKeys != 0
	r.state.serializable, r.state.replica = flags&serializable != 0, flags&replica != 0
	r.state.rows = flags&rowsToRead != 0
	return err
}

// scanAll scans rows until the limit of bytes is reached.
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

// scan scans the current row into m.
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
