package sequence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// VersionsConfig configures [Versions]. The zero value is ready for production use.
type VersionsConfig struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config
}

// Versions shows which versions consumers have applied, and which messages wait for missing ones.
type Versions struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// NewVersions returns a Versions for db, which must be the consumer's database. It
// returns an error that names each invalid field of config.
func NewVersions(db *sql.DB, config VersionsConfig) (*Versions, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, usercode.Refused("sequence", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	return &Versions{db, d}, nil
}

// VersionFilter selects the aggregates that match all fields that are not empty.
type VersionFilter struct {
	Consumer      string
	AggregateType string
	AggregateID   string

	// Limit is the maximum number of rows. Defaults to 100.
	Limit int
}

// Version is the state of an aggregate at one consumer.
type Version struct {
	Consumer, AggregateType, AggregateID string

	// Version is the last applied version. All versions from CompleteFrom to Version were applied.
	Version, CompleteFrom int64

	AppliedAt time.Time
}

// List returns a page of the aggregates that match f, in the order of consumer, type and id. after
// is the last one of the previous page, or zero.
func (v *Versions) List(ctx context.Context, f VersionFilter, after Version) (all []Version, err error) {
	c := conditions{
		texts: []string{`(consumer, aggregate_type, aggregate_id) > ($1, $2, $3)`},
		args:  []any{after.Consumer, after.AggregateType, after.AggregateID},
	}
	c.equal("consumer", f.Consumer)
	c.equal("aggregate_type", f.AggregateType)
	c.equal("aggregate_id", f.AggregateID)
	err = v.each(ctx, f, `SELECT consumer, aggregate_type, aggregate_id, version, complete_from, {millis applied_at} FROM {versions}`,
		&c, `consumer, aggregate_type, aggregate_id`, func() { all = nil }, func(scan func(dest ...any) error) error {
			var (
				row    Version
				millis int64
			)
			err := scan(&row.Consumer, &row.AggregateType, &row.AggregateID, &row.Version, &row.CompleteFrom, &millis)
			row.AppliedAt = time.UnixMilli(millis).UTC()
			all = append(all, row)
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("sequence: versions: %w", err)
	}
	return all, nil
}

// If the query must be repeated, each calls begin again.
func (v *Versions) each(
	ctx context.Context, f VersionFilter, from string, c *conditions, order string, begin func(), row func(scan func(dest ...any) error) error,
) error {
	if f.Limit < 0 {
		return fmt.Errorf("Limit is %d: negative", f.Limit)
	}
	query := v.dialect.SQL(from + c.where() + ` ORDER BY ` + order + fmt.Sprintf(` LIMIT %d`, cmp.Or(f.Limit, 100)))
	return v.dialect.Read(ctx, v.db, func(tx *sql.Tx) error {
		begin()
		return dialect.EachRow(ctx, tx, row, query, c.args...)
	})
}

// Waiting is a message that is held because an earlier version is missing.
type Waiting struct {
	ID int64

	Consumer, Topic, MessageID, AggregateType, AggregateID string

	// Version is the version of the message. If Known is true, Last is the last applied one, and
	// those in between are missing or also wait. Otherwise none was applied.
	Version, Last int64
	Known         bool

	// EarlySince is when the message was first found to be early, and DueAt when it is checked
	// again, or earlier if the preceding version is applied.
	EarlySince, DueAt time.Time
}

// Waiting returns a page of the held messages that match f, in the order of consumer, aggregate and
// version. after is the last one of the previous page, or zero.
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

// split is the reverse of aggregate.sequence. A string that was changed by hand becomes the id of
// an aggregate without a type.
func split(sequence string) (kind, id string) {
	length, rest, _ := strings.Cut(sequence, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", sequence
	}
	return rest[:n], rest[n:]
}

type conditions struct {
	texts []string
	args  []any
}

func (c *conditions) equal(column, value string) {
	if value != "" {
		c.args = append(c.args, value)
		c.texts = append(c.texts, column+" = $"+strconv.Itoa(len(c.args)))
	}
}

func (c *conditions) where() string { return " WHERE " + strings.Join(c.texts, " AND ") }
