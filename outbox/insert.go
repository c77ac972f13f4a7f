package outbox

import (
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// insert writes the one statement that stores messages. The topic is the first
// parameter and the same for all rows.
type insert struct {
	sqlite bool
	head   string
	first  string // the statement for one message without a due time
	row    func(b *strings.Builder, next int, due bool)
}

func newInsert(d dialect.Dialect) insert {
	i := insert{
		sqlite: d.SQLite(),
		head:   d.SQL(`INSERT INTO {outbox} (topic, message_id, ordering_key, slot, payload, metadata, due_at) VALUES `),
	}
	// Most messages have no due time and need no expression to be evaluated.
	// A time that has passed is now: the row is then found in its order.
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
	i.first = b.String()
	return i
}

const (
	// rowParams are the parameters of a row without a due time.
	rowParams = 5

	// most rows and bytes of one statement. PostgreSQL takes 65,535
	// parameters, SQLite 32,766, and longer statements are not faster than
	// this (with SQLite slower: measured); bytes stay far from the 1 GiB that
	// PostgreSQL takes.
	mostRows  = 100
	mostBytes = 64 << 20
)

// cut returns how many of the records go into the next statement: at least one.
func cut(records []record) int {
	size := 0
	for n, r := range records {
		size += r.size
		if n == mostRows || n > 0 && size > mostBytes {
			return n
		}
	}
	return len(records)
}

// statement returns the query for records, at least one, and its arguments.
func (i insert) statement(topic string, records []record) (query string, args []any) {
	args = make([]any, 1, 1+(rowParams+1)*len(records))
	args[0] = topic
	if r := records[0]; len(records) == 1 && r.due.IsZero() {
		return i.first, append(args, r.id, nullable(r.key), r.slot, r.payload, r.metadata)
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

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// time never comes before at: SQLite's milliseconds are rounded up.
func (i insert) time(at time.Time) any {
	if i.sqlite {
		return at.Add(time.Millisecond - 1).UnixMilli()
	}
	return at
}
