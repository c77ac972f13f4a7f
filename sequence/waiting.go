package sequence

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Waiting is a message that is held because an earlier version is missing.
type Waiting struct {
	// ID is the row of the parked message.
	ID int64

	Consumer, Topic, MessageID, AggregateType, AggregateID string

	// Version is that of the message. Last is the last version that was applied, if
	// Known is set; otherwise no version of the aggregate was applied. The versions
	// between them are missing, or also wait.
	Version, Last int64
	Known         bool

	// EarlySince is when the message was first found to be early. DueAt is when the
	// consumer looks at it again; it does so at once when the version before it is
	// applied.
	EarlySince, DueAt time.Time
}

// Waiting returns a page of the held messages that match, in the order of consumer,
// aggregate and version. after is the last one of the page before, or the zero Waiting.
func (v *Versions) Waiting(ctx context.Context, f VersionFilter, after Waiting) (all []Waiting, err error) {
	place := ""
	if after.ID != 0 {
		place = aggregate{kind: after.AggregateType, id: after.AggregateID}.sequence()
	}
	c := conditions{texts: []string{
		`early_of IS NOT NULL AND state = 'waiting' AND (consumer, early_of, early_version, id) > ($1, $2, $3, $4)`,
	}, args: []any{after.Consumer, place, after.Version, after.ID}}
	c.equal("consumer", f.Consumer)
	if f.AggregateType != "" {
		c.equal("early_of", aggregate{kind: f.AggregateType, id: f.AggregateID}.sequence())
	}
	if f.AggregateID != "" && f.AggregateType == "" || f.AggregateID == "" && f.AggregateType != "" {
		return nil, fmt.Errorf("sequence: waiting: AggregateType is %q and AggregateID is %q: set both or none", f.AggregateType, f.AggregateID)
	}
	err = v.each(ctx, f, `
		SELECT id, consumer, topic, message_id, early_of, early_version, {millis early_since}, {millis due_at} FROM {parked}`,
		&c, `consumer, early_of, early_version, id`, func() { all = nil }, func(scan func(dest ...any) error) error {
			var (
				w     Waiting
				of    string
				since sql.NullInt64
				due   int64
			)
			err := scan(&w.ID, &w.Consumer, &w.Topic, &w.MessageID, &of, &w.Version, &since, &due)
			w.AggregateType, w.AggregateID = split(of)
			w.DueAt = time.UnixMilli(due).UTC()
			if since.Valid {
				w.EarlySince = time.UnixMilli(since.Int64).UTC()
			}
			all = append(all, w)
			return err
		})
	if err == nil {
		err = v.addLast(ctx, all)
	}
	if err != nil {
		return nil, fmt.Errorf("sequence: waiting: %w", err)
	}
	return all, nil
}

// addLast adds the last applied versions.
func (v *Versions) addLast(ctx context.Context, all []Waiting) error {
	var consumers, kinds, ids []string
	for _, w := range all {
		consumers, kinds, ids = append(consumers, w.Consumer), append(kinds, w.AggregateType), append(ids, w.AggregateID)
	}
	type key struct{ consumer, kind, id string }
	last := map[key]int64{}
	d := v.dialect
	err := d.Read(ctx, v.db, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				k       key
				version int64
			)
			err := scan(&k.consumer, &k.kind, &k.id, &version)
			last[k] = version
			return err
		}, d.SQL(`SELECT consumer, aggregate_type, aggregate_id, version FROM {versions}
			WHERE (consumer, aggregate_type, aggregate_id) IN (SELECT c.consumer, c.kind, c.id FROM `+
			d.Columns("consumer text", "kind text", "id text")+`)`), d.Strings(consumers), d.Strings(kinds), d.Strings(ids))
	})
	for i := range all {
		w := &all[i]
		w.Last, w.Known = last[key{w.Consumer, w.AggregateType, w.AggregateID}]
	}
	return err
}

// split is the reverse of aggregate.sequence. A text in another format, because
// somebody changed it by hand, is taken as the id of an aggregate without a type.
func split(sequence string) (kind, id string) {
	length, rest, _ := strings.Cut(sequence, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", sequence
	}
	return rest[:n], rest[n:]
}

// conditions collects conditions of a query and their parameters.
type conditions struct {
	texts []string
	args  []any
}

// equal adds a condition unless value is empty.
func (c *conditions) equal(column, value string) {
	if value != "" {
		c.args = append(c.args, value)
		c.texts = append(c.texts, column+" = $"+strconv.Itoa(len(c.args)))
	}
}

func (c *conditions) where() string { return " WHERE " + strings.Join(c.texts, " AND ") }
