package dead

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

type table struct {
	rows.Searched

	inboxRetention, replayLease time.Duration

	in      string // what errors begin with
	row     string // name of a row in errors
	subject string // name of a row in the audit log
	arrived string // column that contains the time at which a row was inserted
}

const columns = `id, position, message_id, topic, ordering_key, created_at, tenant,
	aggregate_type, aggregate_id, event_type, causation_id, `

func deadTable(db *sql.DB, config operate.Config) (*table, error) {
	t := &table{in: "dead", row: "dead letter", subject: "dead", arrived: "died_at"}
	err := t.open(db, config)
	t.Name, t.Rows, t.Columns = `{outbox_dead}`, "dead letters", columns+`attempts, reason, fingerprint, unknown, died_at`
	t.Table.Columns = append(t.Table.Columns,
		rows.Column{Field: "Reason", SQL: "reason"}, rows.Column{Field: "Fingerprint", SQL: "fingerprint"})
	if !t.SQLite() { // repeats the expression of the index
		t.Table.Columns = append(t.Table.Columns, rows.Column{Field: "Topic", Format: `left(topic, 255) = left(%s, 255)`})
	}
	t.Times, t.Reasons, t.Narrow = map[string]string{"Failed": t.arrived}, reasons, t.narrowDead
	t.Leads = [][]string{{"AggregateID"}, {"Fingerprint"}, {"Tenant"}, {"EventType"}, {"AggregateType"}, {"Topic"}, {"Reason"}}
	return t, err
}

const sentRows = 50_000

func sentTable(db *sql.DB, config operate.Config) (*table, error) {
	t := &table{in: "dead: sent log", row: "sent message", subject: "sent", arrived: "sent_at"}
	err := t.open(db, config)
	t.Name, t.Rows, t.Columns = `{outbox_sent}`, "sent messages", columns+`sent_at`
	t.Times, t.Narrow, t.MostRows = map[string]string{"Sent": t.arrived}, t.narrowSent, sentRows
	return t, err
}

func (t *table) open(db *sql.DB, config operate.Config) (err error) {
	if t.DB, config, err = rows.Configure("dead", db, config); err != nil {
		return err
	}
	t.inboxRetention, t.replayLease = config.InboxRetention, config.ReplayLease
	t.ID, t.IDs = "id", `id IN {list %s bigint}`
	t.Table.Columns = []rows.Column{
		{Field: "MessageID", SQL: "message_id"},
		{Field: "Topic", SQL: "topic"},
		{Field: "OrderingKey", SQL: "ordering_key"},
		{Field: "Tenant", SQL: "tenant", Partial: true, Stored: outboxrow.Label},
		{Field: "AggregateType", SQL: "aggregate_type", Partial: true, Stored: outboxrow.Label, Unless: "AggregateID"},
		{Field: "AggregateID", SQL: "aggregate_id", Partial: true, Stored: outboxrow.Label},
		{Field: "EventType", SQL: "event_type", Partial: true, Stored: outboxrow.Label},
	}
	return nil
}

// count returns how many rows match f, ignoring f.Limit, and their highest ID.
func (t *table) count(ctx context.Context, f operate.Filter) (n int, last int64, err error) {
	if err := t.Check(f); err != nil {
		return 0, 0, err
	}
	err = t.Look(ctx, func(tx *sql.Tx) error {
		c, err := t.selected(ctx, tx, f)
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, t.SQL(`SELECT COUNT(*), COALESCE(MAX(id), 0) FROM `+t.Name+` `+c.Where()), c.Args...).Scan(&n, &last)
	})
	return n, last, err
}

// If f limits times, selected also limits the IDs, so that other rows are not read.
func (t *table) selected(ctx context.Context, tx *sql.Tx, f operate.Filter) (*rows.Conditions, error) {
	after, before := t.times(f)
	if after.IsZero() && before.IsZero() {
		return t.Where(f), nil
	}
	if err := t.InOrder(ctx, tx); err != nil {
		return &rows.Conditions{}, err
	}
	f, err := t.Narrow(ctx, tx, f)
	return t.Where(f), err
}

// columns and contents are only this table's. everywhere searches the whole table.
func list[Row any](
	ctx context.Context, t *table, f operate.Filter, everywhere bool, columns string, contents []string,
	read func(scan func(dest ...any) error) (Row, int64, error),
) (operate.Page[Row], error) {
	columns = `id, position, message_id, topic, COALESCE(ordering_key, ''), ` + t.Content(`octet_length(payload)`, `0`) + `,
		` + t.Content(`CAST(metadata AS text)`, `''`) + `, {millis created_at}, ` + columns
	contents = t.Contents(append(contents, "payload", "metadata")...)
	return rows.List(ctx, t.DB, t.Table, f, columns, func(tx *sql.Tx) (w rows.Window, from string, err error) {
		if !everywhere {
			w, err = t.Window(ctx, tx, f, false)
			return w, w.From(contents...), err
		}
		c, err := t.selected(ctx, tx, f)
		if err == nil {
			err = t.InOrder(ctx, tx)
		}
		w = t.Whole(c)
		return w, w.From(contents...), err
	}, read)
}

type contents struct{ payload, metadata []byte }

func (t *table) contents(ctx context.Context, ids ...int64) (map[int64]contents, error) {
	found := make(map[int64]contents, len(ids))
	c := t.Where(operate.Filter{IDs: ids})
	err := t.Look(ctx, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				id  int64
				row contents
			)
			err := scan(&id, &row.payload, &row.metadata)
			if row.payload == nil {
				row.payload = []byte{} // nil means that the body was not read
			}
			found[id] = row
			return err
		}, t.SQL(`SELECT id, payload, CAST(metadata AS text) FROM `+t.Name+` `+c.Where()), c.Args...)
	})
	return found, err
}

func (t *table) payload(ctx context.Context, id int64) ([]byte, error) {
	found, err := t.contents(ctx, id)
	if err != nil {
		return nil, err
	}
	row, ok := found[id]
	if !ok {
		return nil, t.notFound(id)
	}
	return row.payload, nil
}

func (t *table) notFound(id int64) error {
	return fmt.Errorf("%s %d: %w", t.row, id, operate.ErrNotFound)
}

// narrowDead returns f with the IDs of the rows of an ordering key or a time, if there are few, or
// with the lowest and the highest ID of the rows of a time.
func (t *table) narrowDead(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error) {
	if f.IDs != nil || f.MessageID != "" {
		return f, nil
	}
	times := t.Where(operate.Filter{FailedAfter: f.FailedAfter, FailedBefore: f.FailedBefore})
	for _, c := range []*rows.Conditions{t.Where(operate.Filter{OrderingKey: f.OrderingKey}), times} {
		if len(c.Texts) == 0 {
			continue
		}
		if ids, few, err := t.Few(ctx, tx, c); err != nil || few {
			f.IDs = ids
			return f, err
		}
	}
	if len(times.Texts) > 0 {
		first, last, known, err := t.Span(ctx, tx, times)
		if err != nil || known {
			return within(f, first, last), err
		}
	}
	return t.since(ctx, tx, f)
}

func (t *table) narrowSent(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error) {
	if f.IDs != nil || f.MessageID != "" {
		return f, nil
	}
	if f.AggregateID != "" {
		c := t.Where(operate.Filter{AggregateType: f.AggregateType, AggregateID: f.AggregateID})
		if ids, few, err := t.Few(ctx, tx, c); err != nil || few {
			f.IDs = ids
			return f, err
		}
	}
	return t.since(ctx, tx, f)
}

func within(f operate.Filter, first, last int64) operate.Filter {
	f.AfterID = max(f.AfterID, first-1)
	if last < math.MaxInt64 {
		f.UntilID = min(last, cmp.Or(f.UntilID, last))
	}
	return f
}

// clockSlack is how much earlier the time of a row may be than that of a row with a lower ID, if a
// transaction has waited, or the clock of the database was set back.
const clockSlack = 10 * time.Minute

// Without limits for the IDs, a list would also read all rows before the times in f, because
// PostgreSQL reads rows in the order of their IDs.
func (t *table) since(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error) {
	after, before := t.times(f)
	if !after.IsZero() {
		first, err := t.firstSince(ctx, tx, after.Add(-clockSlack))
		if err != nil {
			return f, err
		}
		f = within(f, first, math.MaxInt64)
	}
	if before.IsZero() {
		return f, nil
	}
	last, err := t.firstSince(ctx, tx, before.Add(clockSlack))
	return within(f, 1, last), err
}

func (t *table) times(f operate.Filter) (after, before time.Time) {
	if t.Times["Failed"] != "" {
		return f.FailedAfter, f.FailedBefore
	}
	return f.SentAfter, f.SentBefore
}

// firstSince returns the ID of the first row inserted at the time or later, or an ID above all
// rows, by a binary search.
func (t *table) firstSince(ctx context.Context, tx *sql.Tx, at time.Time) (id int64, err error) {
	c := &rows.Conditions{}
	earlier := `r.id < s.high AND r.` + t.arrived + ` < ` + c.Arg(rows.TimeArg(t.Dialect, at))
	err = tx.QueryRowContext(ctx, t.SQL(`WITH RECURSIVE steps (low, high) AS (
			SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 0) + 1 FROM `+t.Name+`
		UNION ALL
			SELECT CASE WHEN `+earlier+` THEN r.id + 1 ELSE s.low END, CASE WHEN `+earlier+` THEN s.high ELSE (s.low + s.high) / 2 END
			FROM steps AS s CROSS JOIN `+t.Name+` AS r
			WHERE s.low < s.high AND r.id = (SELECT m.id FROM `+t.Name+` AS m WHERE m.id >= (s.low + s.high) / 2 ORDER BY m.id LIMIT 1)
		)
		SELECT MAX(low) FROM steps`), c.Args...).Scan(&id)
	return id, err
}
