package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Entries lists, replays, edits and discards the messages in quarantine. It is safe for concurrent
// use.
type Entries struct {
	config operate.Config
	table  *table

	replayed, discarded, edited *telemetry.Counter
}

// New returns the quarantine in db, which must be the consumer's own database. The tables
// must exist, see schema.Up.
func New(db *sql.DB, config operate.Config) (*Entries, error) {
	d, config, err := rows.Configure("quarantine", db, config)
	if err != nil {
		return nil, err
	}
	meter := telemetry.NewMeter(config.MeterProvider, "operate/quarantine")
	q := &Entries{
		config:    config,
		replayed:  meter.Counter("once.poison.replayed", "{message}", "Messages that were given back to their consumer."),
		discarded: meter.Counter("once.poison.discarded", "{message}", "Messages that were discarded."),
		edited:    meter.Counter("once.poison.edited", "{message}", "Messages that were replaced by an edited one."),
	}
	for _, c := range []*telemetry.Counter{q.replayed, q.discarded, q.edited} {
		c.Zero()
	}
	if q.table, err = newTable(d, config, q.replayed); err != nil {
		return nil, fmt.Errorf("quarantine: %w", err)
	}
	return q, nil
}

type table struct {
	rows.Searched

	parked  *parkedrows.Store
	replays *rows.Replays
	sql     queries
}

func newTable(d rows.DB, config operate.Config, replayed *telemetry.Counter) (*table, error) {
	store, err := parkedrows.NewStore(d.DB, d.Config())
	if err != nil {
		return nil, err
	}
	t := &table{parked: store, sql: newQueries(d.Dialect)}
	t.Searched = rows.Searched{
		DB: d, Name: `{parked}`, Narrow: t.narrow,
		Columns: `id, consumer, topic, message_id, ordering_key, tenant,
		aggregate_type, aggregate_id, event_type, state, attempts, crashes, replays, replay_id, edited_from, origin, reason, error_type,
		fingerprint, due_at, created_at, first_failed_at, last_failed_at, finished_at`,
		Leads: [][]string{
			{"AggregateID"}, {"Fingerprint"}, {"Tenant"}, {"ErrorType"}, {"EventType"}, {"AggregateType"}, {"Reason"}, {"Consumer", "Topic"},
		},
		Table: rows.Table{
			Rows: "entries in quarantine", ID: "id", IDs: `id {among %s bigint}`,
			Times: map[string]string{"Failed": "last_failed_at"}, Reasons: append(slices.Clone(chain.Reasons), chain.ReasonCancelled),
			Fixed: func(f operate.Filter) []string { return fixed(f, parkedrows.Quarantined) },
		},
	}
	for _, c := range []rows.Column{
		{Field: "Consumer", SQL: "consumer"},
		{Field: "Topic", SQL: "topic"},
		{Field: "MessageID", SQL: "message_id"},
		{Field: "Tenant", SQL: "tenant", Partial: true},
		{Field: "AggregateType", SQL: "aggregate_type", Partial: true, Unless: "AggregateID"},
		{Field: "AggregateID", SQL: "aggregate_id"},
		{Field: "EventType", SQL: "event_type", Partial: true},
		{Field: "Reason", SQL: "reason"},
		{Field: "ErrorType", SQL: "error_type", Partial: true},
		{Field: "Fingerprint", SQL: "fingerprint"},
	} {
		c.Stored = func(name string) string { return parkedrows.Clean(name, parkedrows.MaxName) }
		t.Table.Columns = append(t.Table.Columns, c)
	}
	t.replays = rows.NewReplays(d, rows.Source{
		Name: operate.SourceQuarantine, Table: t.Table, Lease: config.ReplayLease, Batch: replayBatch, Outcomes: true,
		Count: t.countForReplay, Take: t.take, Taken: func(n int) { replayed.Add(int64(n), 0) },
	})
	return t, nil
}

func (t *table) record(ctx context.Context, tx *sql.Tx, act operate.Act, action string, id int64, consumer, messageID string) error {
	return t.recordOn(ctx, tx, act, action, "parked:"+strconv.FormatInt(id, 10), consumer, messageID)
}

func (t *table) recordOn(ctx context.Context, tx *sql.Tx, act operate.Act, action, subject, consumer, messageID string) error {
	_, err := tx.ExecContext(ctx, t.sql.audit, parkedrows.Clean(act.Actor, parkedrows.MaxName), action, parkedrows.Clean(subject,
		parkedrows.MaxName),
		consumer, messageID, parkedrows.Clean(act.Why, parkedrows.MaxError))
	failpoint.Hit("operate/quarantine/audited")
	return err
}

// A row that is not in quarantine is [operate.ErrNotFound].
func each(ids []int64, f func(id int64) error) error {
	for _, id := range ids {
		err := f(id)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("message %d: %w in quarantine", id, operate.ErrNotFound)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", id, err)
		}
	}
	return nil
}

// The states are constants, "" for all. They are literals in the query, because the database does
// not use a partial index for a parameter.
func (t *table) in(states ...string) *rows.Searched {
	s := t.Searched
	s.Fixed = func(f operate.Filter) []string { return fixed(f, states...) }
	return &s
}

func (t *table) where(f operate.Filter, states ...string) *rows.Conditions {
	return t.in(states...).Where(f)
}

func fixed(f operate.Filter, states ...string) []string {
	texts := []string{"id > 0"}
	if f.MessageID != "" { // only the index on message ids has this condition, so no other index matches
		texts = []string{"message_id <> ''"}
	}
	if len(states) > 0 && states[0] != "" {
		texts = append(texts, withinStates(f, states))
	}
	return texts
}

// replayed returns where a call looks for the replayed messages that match f.
func (t *table) replayed(ctx context.Context, tx *sql.Tx, f operate.Filter) (rows.Window, error) {
	if err := t.InOrder(ctx, tx); err != nil {
		return rows.Window{}, err
	}
	s := t.in()
	s.Fixed = func(f operate.Filter) []string {
		return append(fixed(f), "replays > 0", stateIn([]string{parkedrows.Waiting, parkedrows.Held}))
	}
	return s.Bounded(ctx, tx, []*rows.Conditions{s.Where(rows.Only(f))}, func(c *rows.Conditions) { c.Filter(t.Dialect, s.Table, f) }, false)
}

// narrow returns f with the IDs of the entries that failed between f.FailedAfter and
// f.FailedBefore, with their range if there are many, or unchanged if there are too many to find
// the range.
func (t *table) narrow(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error) {
	if f.IDs != nil || f.MessageID != "" || f.FailedAfter.IsZero() && f.FailedBefore.IsZero() {
		return f, nil
	}
	at := &rows.Conditions{Texts: []string{stateIn([]string{parkedrows.Quarantined})}}
	at.AddSpan(t.Dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	ids, few, err := t.Few(ctx, tx, at)
	if err != nil || few {
		f.IDs = ids
		return f, err
	}
	first, last, known, err := t.Span(ctx, tx, at)
	if known {
		f.AfterID, f.UntilID = max(f.AfterID, first-1), last
	}
	return f, err
}

// withinStates returns the SQL condition of the states in a form that only the best index matches.
// With old statistics, the planner may choose the index of all quarantined rows, although another
// index finds fewer rows. The database uses a partial index only for its own condition. So:
//
//   - If the Filter has a message id, no index of states matches, and the planner uses
//     the index of message ids.
//   - If the Filter has an aggregate id, the index of aggregates matches, whose
//     condition is parkedrows.AtRest. This is correct, because the callers pass only states
//     that parkedrows.AtRest includes.
//   - If the Filter has a consumer, and no condition with a better index, the index of
//     consumers matches.
//   - Otherwise the indexes of states match.
func withinStates(f operate.Filter, states []string) string {
	switch {
	case f.MessageID != "":
		return "'' || " + stateIn(states)
	case f.AggregateID != "":
		return "aggregate_id <> '' AND " + parkedrows.AtRest + " AND '' || " + stateIn(states)
	case f.Consumer != "" && f.Fingerprint+f.Tenant+f.AggregateType+f.EventType+f.ErrorType == "" &&
		slices.Equal(states, []string{parkedrows.Quarantined}):
		return "state || '' = 'quarantined'"
	default:
		return stateIn(states)
	}
}

func stateIn(states []string) string {
	if len(states) == 1 { // SQLite finds no partial index for IN with one element
		return "state = '" + states[0] + "'"
	}
	return "state IN ('" + strings.Join(states, "', '") + "')"
}

// Without Filter.Limit, limit is larger than any table.
func limit(f operate.Filter) int64 {
	if f.Limit == 0 {
		return 1 << 62
	}
	return int64(f.Limit)
}
