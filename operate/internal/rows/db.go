// Package rows contains what the packages below operate share: which rows a Filter selects, how
// much of a table one call reads, how rows are changed in batches, the audit log, and replays.
package rows

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/schema"
)

// DB is a database with the names of its tables.
type DB struct {
	*sql.DB
	dialect.Dialect

	withoutContent bool
}

// Open returns a DB for a Config that contains only the names of the tables. pkg is the
// name of the package in errors.
func Open(pkg string, db *sql.DB, config schema.Config) (DB, error) {
	return open(pkg, db, config, nil)
}

func open(pkg string, db *sql.DB, config schema.Config, err error) (DB, error) {
	config = config.WithDefaults()
	err = errors.Join(config.Validate(), err)
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return DB{}, usercode.Refused(pkg, err)
	}
	d, err := dialect.New(config)
	if err != nil {
		return DB{}, fmt.Errorf("%s: %w", pkg, err)
	}
	return DB{DB: db, Dialect: d}, nil
}

// Configure returns a DB for config, and config with its defaults.
func Configure(pkg string, db *sql.DB, config operate.Config) (DB, operate.Config, error) {
	config.Schema = config.Schema.WithDefaults()
	config.InboxRetention = cmp.Or(config.InboxRetention, 7*24*time.Hour)
	config.ReplayLease = cmp.Or(config.ReplayLease, 30*time.Second)
	var errs []error
	if config.InboxRetention < 0 {
		errs = append(errs, fmt.Errorf("InboxRetention is %v: negative", config.InboxRetention))
	}
	if config.ReplayLease < 500*time.Millisecond {
		errs = append(errs, fmt.Errorf("ReplayLease is %v: less than 500 ms", config.ReplayLease))
	}
	d, err := open(pkg, db, config.Schema, errors.Join(errs...))
	d.withoutContent = config.WithoutContent
	return d, config, err
}

// Look calls work in a transaction that reads.
func (d DB) Look(ctx context.Context, work func(tx *sql.Tx) error) error {
	return d.Dialect.Look(ctx, d.DB, work)
}

// Write calls work in a transaction that may change rows.
func (d DB) Write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return d.Dialect.Write(ctx, d.DB, work)
}

// Content returns the SQL expression of a part of a content, or instead without content.
func (d DB) Content(expression, instead string) string {
	if d.withoutContent {
		return instead
	}
	return expression
}

// Contents returns the names of columns with contents, or nil with Config.WithoutContent.
func (d DB) Contents(columns ...string) []string {
	if d.withoutContent {
		return nil
	}
	return columns
}

// Time converts milliseconds to a time. It returns the zero time for NULL.
func Time(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return Millis(millis.Int64)
}

// Millis converts milliseconds to a time.
func Millis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }

// IDs returns the numbers in the first column of the rows of a query. The result is not nil.
func IDs(ctx context.Context, tx *sql.Tx, query string, args ...any) ([]int64, error) {
	ids := []int64{}
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, query, args...)
	return ids, err
}
