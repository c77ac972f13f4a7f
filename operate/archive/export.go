package archive

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	exportVersion = 1

	page = 1000

	// keyPrefix distinguishes business keys from message ids in the inbox.
	keyPrefix = "key:"
)

// Cursor is the place of a row in an export. The zero value is before the first row.
type Cursor struct {
	HandledAt time.Time
	ID        string // message id, or "key:" followed by the business key
	Consumer  string
}

// Filter selects rows for an export. The zero value selects all rows.
type Filter struct {
	// After selects the rows after this place. Defaults to the zero Cursor, which selects all rows.
	After Cursor

	// Until selects the rows that were handled before this time. Defaults to no limit.
	// An archive sets it to the result of [Log.Settled].
	Until time.Time

	// Limit is the maximum number of rows. Defaults to no limit.
	Limit int
}

func (f Filter) validate() error {
	var errs []error
	if f.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: must be at least 1, or 0 for no limit", f.Limit))
	}
	if at := f.After; at != (Cursor{}) && (at.HandledAt.IsZero() || at.ID == "") {
		errs = append(errs, errors.New("After is incomplete: use a Cursor that Export or CursorOf has returned"))
	}
	return errors.Join(errs...)
}

type line struct {
	Version   int       `json:"version"`
	MessageID string    `json:"message_id,omitempty"`
	Key       string    `json:"key,omitempty"`
	Consumer  string    `json:"consumer"`
	HandledAt time.Time `json:"handled_at"`
	Tenant    string    `json:"tenant,omitempty"`
}

// CursorOf returns the Cursor of a line that [Log.Export] wrote. To continue an archive, pass the
// Cursor of its last line to the next export as Filter.After.
func CursorOf(text []byte) (Cursor, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Cursor{}, fmt.Errorf("archive: line of an export: %w", err)
	}
	c := Cursor{l.HandledAt, l.MessageID, l.Consumer}
	if l.Key != "" {
		c.ID = keyPrefix + l.Key
	}
	switch {
	case l.Version != exportVersion:
		return Cursor{}, fmt.Errorf("archive: line of an export: version is %d, this code reads version %d", l.Version, exportVersion)
	case c.HandledAt.IsZero() || c.ID == "":
		return Cursor{}, errors.New("archive: line of an export: it has no handled_at, or neither message_id nor key")
	}
	return c, nil
}

// Export writes the rows that match f to w, one JSON object per line, in the order of the times at
// which their messages were handled. It returns the number of rows, and the place of the last one,
// or f.After. A row with a business key has "key" in its line in place of "message_id". The lines
// contain no digests.
//
// If Export fails, w may contain more lines, and an incomplete last one: begin again with the same
// After and a new file.
//
// Messages may be committed in a different order than they were handled, so an export that
// continues another is complete only if that one ended at [Log.Settled].
func (l *Log) Export(ctx context.Context, f Filter, w io.Writer) (exported int, last Cursor, err error) {
	exported, last, err = l.export(ctx, f, w)
	if err != nil {
		return exported, last, fmt.Errorf("archive: export: %w", err)
	}
	return exported, last, nil
}

func (l *Log) export(ctx context.Context, f Filter, w io.Writer) (exported int, last Cursor, err error) {
	if err := f.validate(); err != nil {
		return 0, f.After, err
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for f.Limit == 0 || exported < f.Limit {
		most := page
		if f.Limit > 0 {
			most = min(page, f.Limit-exported)
		}
		n, next, err := l.page(ctx, f, most, encoder)
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			return exported, f.After, err
		}
		exported, f.After = exported+n, next
		if n < most {
			break
		}
	}
	return exported, f.After, nil
}

func (l *Log) page(ctx context.Context, f Filter, limit int, encoder *json.Encoder) (n int, last Cursor, err error) {
	last = f.After
	query, args := l.query(f, limit)
	var lines []line
	err = l.db.Read(ctx, l.db.DB, func(tx *sql.Tx) error {
		lines = lines[:0]
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			next := line{Version: exportVersion}
			var at int64
			if err := scan(&last.ID, &last.Consumer, &at, &next.Tenant); err != nil {
				return err
			}
			last.HandledAt = l.time(at)
			next.MessageID, next.Consumer, next.HandledAt = last.ID, last.Consumer, last.HandledAt
			if key, ok := strings.CutPrefix(last.ID, keyPrefix); ok {
				next.MessageID, next.Key = "", key
			}
			lines = append(lines, next)
			return nil
		}, query, args...)
	})
	if err != nil {
		return 0, f.After, err
	}
	for _, next := range lines {
		if err := encoder.Encode(next); err != nil {
			return 0, f.After, err
		}
	}
	return len(lines), last, nil
}

// The index on processed_at has the rows of a page in their order, also in an inbox by day.
func (l *Log) query(f Filter, limit int) (query string, args []any) {
	arg := func(value any) string {
		args = append(args, value)
		return "$" + strconv.Itoa(len(args))
	}
	var where []string
	if !f.Until.IsZero() {
		where = append(where, `processed_at < `+l.from(arg(l.number(f.Until))))
	}
	if f.After != (Cursor{}) {
		at := l.from(arg(l.number(f.After.HandledAt)))
		where = append(where, `processed_at >= `+at,
			`(processed_at, message_id, consumer) > (`+at+`, `+arg(f.After.ID)+`, `+arg(f.After.Consumer)+`)`)
	}
	conditions := cmp.Or(strings.Join(where, ` AND `), `1 = 1`)
	return l.db.SQL(`
		SELECT message_id, consumer, ` + l.exact(`processed_at`) + `, COALESCE(tenant, '') FROM {inbox}
		WHERE ` + conditions + ` ORDER BY processed_at, message_id, consumer LIMIT ` + arg(limit)), args
}

// PostgreSQL stores times in microseconds, SQLite in milliseconds. An export needs the
// exact times, to continue where an earlier export has ended.

func (l *Log) exact(column string) string {
	if l.db.SQLite() {
		return column
	}
	return `(extract(epoch FROM ` + column + `) * 1000000)::bigint`
}

func (l *Log) from(parameter string) string {
	if l.db.SQLite() {
		return parameter
	}
	return `(timestamptz 'epoch' + ` + parameter + `::bigint * interval '1 microsecond')`
}

func (l *Log) time(n int64) time.Time {
	if l.db.SQLite() {
		return time.UnixMilli(n).UTC()
	}
	return time.UnixMicro(n).UTC()
}

func (l *Log) number(t time.Time) int64 {
	if l.db.SQLite() {
		return t.UnixMilli()
	}
	return t.UnixMicro()
}
