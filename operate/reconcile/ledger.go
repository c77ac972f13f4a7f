package reconcile

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/schema"
)

var columns = []string{"day", "hour", "topic", "consumer", "tenant", "type"}

// LedgerConfig configures [Ledger]. The zero value is ready for use.
type LedgerConfig struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// By lists the columns of the ledger: "day" or "hour" (of the rows, in UTC), "topic",
	// "consumer", "tenant" and "type". Defaults to none, with one line for each state. Some tables
	// have an empty column: a sender's the consumer, and the inbox the topic and the event type.
	By []string

	// From (inclusive) and Until (exclusive) limit the times of the rows. Default to no limit.
	From, Until time.Time
}

// Line contains the number of messages with one state and the same values in the requested columns.
type Line struct {
	// State is "sent", "pending" or "dead" at a sender, and "handled", "waiting", "held",
	// "quarantined" or "discarded" at a consumer.
	State string `json:"state"`

	Start     time.Time `json:"start,omitzero"` // start of the day or hour
	Topic     string    `json:"topic,omitempty"`
	Consumer  string    `json:"consumer,omitempty"`
	Tenant    string    `json:"tenant,omitempty"`
	EventType string    `json:"type,omitempty"`

	// N is the number of rows. A message that was sent twice has two in the sent log, and a
	// replayed one can have one in the inbox and a parked one.
	N int `json:"n"`

	// First and Last are the times of the first and the last row: when its message was sent,
	// written to the outbox (also for dead letters), handled or parked.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Ledger counts the messages in the tables of one database: sent, pending and dead messages, and
// those that consumers have handled and parked. It reads whole tables. The role watcher is
// sufficient, unless By contains "tenant" or "type", which are in the metadata of a sender's
// messages.
func Ledger(ctx context.Context, db *sql.DB, config LedgerConfig) ([]Line, error) {
	config.Schema = config.Schema.WithDefaults()
	s, err := newSide(db, config.Schema, config.validate())
	if err != nil {
		return nil, err
	}
	text, args := s.ledgerQuery(config)
	var lines []Line
	err = s.rows(ctx, func(scan func(dest ...any) error) error {
		var l Line
		var start, first, last int64
		err := scan(&l.State, &start, &l.Topic, &l.Consumer, &l.Tenant, &l.EventType, &l.N, &first, &last)
		if width := config.width(); width > 0 {
			l.Start = fromMillis(start * width)
		}
		l.First, l.Last = fromMillis(first), fromMillis(last)
		lines = append(lines, l)
		return err
	}, text, args...)
	if err != nil {
		return nil, fmt.Errorf("reconcile: ledger: %w", err)
	}
	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(
			a.Start.Compare(b.Start), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Consumer, b.Consumer),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.EventType, b.EventType),
			cmp.Compare(slices.Index(lineStates, a.State), slices.Index(lineStates, b.State)))
	})
	return lines, nil
}

var lineStates = []string{"pending", "dead", "sent", "handled", "waiting", "held", "quarantined", "discarded"}

func (c LedgerConfig) validate() error {
	errs := []error{c.Schema.Validate()}
	for _, column := range c.By {
		if !slices.Contains(columns, column) {
			errs = append(errs, fmt.Errorf("By has %q: not one of %v", column, columns))
		}
	}
	if slices.Contains(c.By, "day") && slices.Contains(c.By, "hour") {
		errs = append(errs, fmt.Errorf("By has %q and %q: use one of them", "day", "hour"))
	}
	if !c.Until.IsZero() && !c.From.Before(c.Until) {
		errs = append(errs, errors.New("Until is not after From"))
	}
	return errors.Join(errs...)
}

// Without a column of time, width is 0.
func (c LedgerConfig) width() (ms int64) {
	lengths := map[string]time.Duration{"day": 24 * time.Hour, "hour": time.Hour}
	for _, column := range c.By {
		ms = max(ms, lengths[column].Milliseconds())
	}
	return ms
}

func (s side) ledgerQuery(config LedgerConfig) (text string, args []any) {
	metadata := func(key string) string {
		if s.dialect.SQLite() {
			return `CASE WHEN json_valid(metadata) THEN COALESCE(json_extract(metadata, '$.` + key + `'), '') ELSE '' END`
		}
		return `COALESCE(metadata ->> '` + key + `', '')`
	}
	const none = `''`
	tenant, eventType := metadata(meta.TenantID), metadata(meta.EventType)
	var q query
	var parts []string
	for _, t := range []struct{ name, state, time, topic, consumer, tenant, eventType, where string }{
		{`{outbox}`, `'pending'`, `created_at`, `topic`, none, tenant, eventType, `1 = 1`},
		{`{outbox_dead}`, `'dead'`, `created_at`, `topic`, none, tenant, eventType, `1 = 1`},
		{`{outbox_sent}`, `'sent'`, `sent_at`, `topic`, none, tenant, eventType, `1 = 1`},
		{`{inbox}`, `'handled'`, `processed_at`, none, `consumer`, `COALESCE(tenant, '')`, none, `(message_id < 'key:' OR message_id >= 'key;')`},
		{`{parked}`, `state`, `created_at`, `topic`, `consumer`, `tenant`, `event_type`, `state <> 'resolved'`},
	} {
		selected := []string{t.state, `0`, t.topic, t.consumer, t.tenant, t.eventType}
		if width := config.width(); width > 0 {
			selected[1] = fmt.Sprintf(`{millis %s} / %d`, t.time, width)
		}
		for i := 2; i < len(selected); i++ {
			if !slices.Contains(config.By, columns[i]) {
				selected[i] = none
			}
		}
		if !config.From.IsZero() {
			t.where += ` AND ` + t.time + ` >= ` + q.millis(config.From)
		}
		if !config.Until.IsZero() {
			t.where += ` AND ` + t.time + ` < ` + q.millis(config.Until)
		}
		parts = append(parts, `SELECT `+strings.Join(selected, `, `)+`, COUNT(*), {millis MIN(`+t.time+`)}, {millis MAX(`+t.time+`)} FROM `+
			t.name+` WHERE `+t.where+` GROUP BY 1, 2, 3, 4, 5, 6`)
	}
	return s.dialect.SQL(strings.Join(parts, ` UNION ALL `)), q.args
}
