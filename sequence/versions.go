package sequence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// VersionsConfig configures [Versions]. The zero value is ready for production use.
type VersionsConfig struct {
	// Schema contains the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config
}

// Versions shows which versions consumers have applied, and which messages wait for
// missing versions.
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
		return nil, fields.Refused("sequence", err)
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

	// Version is the last applied version. All versions from CompleteFrom to Version were
	// applied.
	Version, CompleteFrom int64

	// AppliedAt is the time at which Version was applied.
	AppliedAt time.Time
}

// List returns a page of the aggregates that match f, in the order of consumer, type
// and id. The parameter after is the last aggregate of the previous page, or the zero
// Version.
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

// each calls the function begin, and then the function row for every row of a page. If
// the query must be repeated, it calls begin again.
func (v *Versions) each(
	ctx context.Context, f VersionFilter, from string, c *conditions, order string, begin func(), row func(scan func(dest ...any) error) error,
) error {
	if f.Limit < 0 {
		return fmt.Errorf("Limit is %d: negative", f.Limit)
	}
	query := v.dialect.SQL(from + c.where() + ` ORDER BY ` + order + fmt.Sprintf(` LIMIT %d`, cmp.Or(f.Limit, 100)))
	return dialect.LeaveReplica(ctx, v.db, v.dialect.Read(ctx, v.db, func(tx *sql.Tx) error {
		begin()
		return dialect.EachRow(ctx, tx, row, query, c.args...)
	}))
}
