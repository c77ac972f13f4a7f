package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
)

// insert builds the statement that stores messages. $1 is the topic of all of them. For PostgreSQL,
// it can also have all values as constants.
type insert struct {
	sqlite bool
	head   string
	single string // statement for one message without a due time
	row    func(b *strings.Builder, next int, due bool)
}

func newInsert(d dialect.Dialect) insert {
	i := insert{
		sqlite: d.SQLite(),
		head:   d.SQL(`INSERT INTO {outbox} (topic, message_id, ordering_key, slot, payload, metadata, due_at) VALUES `),
	}
	// A due time in the past becomes NULL, so that the row keeps its place in the order. Rows
	// without one need no expression.
	mark, future := "$", " > now() THEN "
	cast := "::timestamptz"
	if i.sqlite {
		mark, future, cast = "?", d.SQL(" > {now} THEN "), ""
	}
	i.row = func(b *strings.Builder, next int, due bool) {
		b.WriteString("(" + mark + "1")
		for column := range rowParams {
			b.WriteString("," + mark + strconv.Itoa(next+column))
		}
		if due {
			at := mark + strconv.Itoa(next+rowParams) + cast
			b.WriteString(",CASE WHEN " + at + future + at + " END)")
		} else {
			b.WriteString(",NULL)")
		}
	}
	var b strings.Builder
	b.WriteString(i.head)
	i.row(&b, 2, false)
	i.single = b.String()
	return i
}

const (
	// rowParams is for a row without a due time.
	rowParams = 5

	// PostgreSQL accepts 65,535 parameters, SQLite 32,766, and PostgreSQL 1 GiB. Measurements show
	// that longer statements are not faster, and slower in SQLite.
	maxRows  = 100
	maxBytes = 64 << 20
)

// At least one record goes into the next statement.
func cut(records []record) int {
	size := 0
	for n, r := range records {
		size += r.size
		if n == maxRows || n > 0 && size > maxBytes {
			return n
		}
	}
	return len(records)
}

// There must be at least one record.
func (i insert) statement(topic string, records []record) (query string, args []any) {
	args = make([]any, 1, 1+(rowParams+1)*len(records))
	args[0] = topic
	if r := records[0]; len(records) == 1 && r.due.IsZero() {
		return i.single, append(args, r.id, nullable(r.key), r.slot, r.payload, r.metadata)
	}
	var b strings.Builder
	b.WriteString(i.head)
	for n, r := range records {
		if n > 0 {
			b.WriteByte(',')
		}
		due := !r.due.IsZero()
		i.row(&b, len(args)+1, due)
		args = append(args, r.id, nullable(r.key), r.slot, r.payload, r.metadata)
		if due {
			args = append(args, i.time(r.due))
		}
	}
	return b.String(), args
}

// text returns the statement with constants, for PostgreSQL. Drivers send it in one round trip, and
// lazytx together with COMMIT. There must be at least one record.
func (i insert) text(topic string, records []record) string {
	size := len(i.head)
	for _, r := range records {
		const rest = 192 // usual size of the other columns, with the escapes in metadata
		size += 2*len(r.payload) + len(r.metadata) + rest
	}
	b := append(make([]byte, 0, size), i.head...)
	for n, r := range records {
		if n > 0 {
			b = append(b, ',')
		}
		b = dialect.AppendText(append(b, '('), topic)
		b = dialect.AppendText(append(b, ','), r.id)
		b = append(b, ',')
		if r.key == "" {
			b = append(b, "NULL"...)
		} else {
			b = dialect.AppendText(b, r.key)
		}
		b = strconv.AppendInt(append(b, ','), int64(r.slot), 10)
		b = dialect.AppendBytes(append(b, ','), r.payload)
		b = dialect.AppendText(append(b, ','), r.metadata)
		b = appendDue(append(b, ','), r.due)
		b = append(b, ')')
	}
	return string(b)
}

// The due time is NULL if it is zero or in the past.
func appendDue(b []byte, due time.Time) []byte {
	if due.Year() < 1 || due.IsZero() { // PostgreSQL has no year 0
		return append(b, "NULL"...)
	}
	const microseconds = "'2006-01-02 15:04:05.999999Z'"
	at := due.UTC().Add(time.Microsecond - 1).Format(microseconds) // rounded up, so that no message is sent too early
	return append(b, "CASE WHEN timestamptz "+at+" > now() THEN timestamptz "+at+" END"...)
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// time rounds up to the milliseconds of SQLite, so that no message is sent too early.
func (i insert) time(at time.Time) any {
	if i.sqlite {
		return at.Add(time.Millisecond - 1).UnixMilli()
	}
	return at
}

// Statement is an SQL statement with arguments, $1, ... in PostgreSQL and ?1, ... in SQLite.
type Statement struct {
	Query string
	Args  []any
}

// Statements returns the statements that store messages, for libraries without database/sql, such
// as package pgxoutbox. Execute them in their order in the business transaction. If the outbox
// cannot accept a message, Statements returns an [ErrInvalid].
//
// Call done once, with the error of the statements or nil. It records the metrics, and returns the
// error for the caller, which says what to do if a table or a right is missing. Messages whose
// context has no trace get the trace of ctx.
func (o *Outbox) Statements(
	ctx context.Context, topic string, msgs ...*message.Message,
) (statements []Statement, done func(err error) error, err error) {
	call := o.instruments.begin(ctx, topic, msgs)
	records, err := o.check(topic, msgs, call)
	if err != nil {
		call.end(err)
		return nil, nil, err
	}
	for len(records) > 0 {
		n := cut(records)
		query, args := o.insert.In(nil).statement(topic, records[:n])
		statements = append(statements, Statement{Query: query, Args: args})
		records = records[n:]
	}
	done = func(err error) error {
		if err != nil {
			err = o.failed(err)
		}
		call.end(err)
		return err
	}
	return statements, done, nil
}

// LockStatement returns the statement of LockKey, without arguments. Ignore its rows. It returns an
// error if keys is empty or contains an empty key.
func (o *Outbox) LockStatement(keys ...string) (string, error) {
	if len(keys) == 0 || slices.Contains(keys, "") {
		return "", errors.New("outbox: LockKey needs at least one ordering key, and no empty key")
	}
	return o.lock(keys), nil
}
