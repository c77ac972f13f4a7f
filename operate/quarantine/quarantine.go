package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"

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
