package dialect

import (
	"context"
	"database/sql"
	"errors"
	"regexp"

	"github.com/watermill-once/once/schema"
)

// mysqlText matches the text of an error of MySQL or MariaDB. Such an error has no
// method that could identify it.
var mysqlText = regexp.MustCompile(`\bError \d+ \([0-9A-Z]{5}\): `)

// kindError has the text of schema.ErrDialect. It also wraps the error of the database,
// because callers examine that error.
type kindError struct{ kind, cause error }

func (e kindError) Error() string   { return e.kind.Error() }
func (e kindError) Unwrap() []error { return []error{e.kind, e.cause} }

// Explain returns schema.ErrDialect instead of err if the database is not of the kind
// for which d writes SQL. In this case err only says that the database does not
// understand the SQL. The parameter db is a *sql.DB or a *sql.Tx.
func (d Dialect) Explain(ctx context.Context, db querier, err error) error {
	if err == nil || !d.foreign(err) {
		return err
	}
	if kind := schema.Check(ctx, db, d.config); errors.Is(kind, schema.ErrDialect) {
		return kindError{kind, err}
	}
	return err
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// foreign reports whether err may come from a database for which d does not write SQL.
func (d Dialect) foreign(err error) bool {
	if d.SQLite() && State(err) != "" || !d.SQLite() && sqliteCode(err) != 0 {
		return true
	}
	return mysqlText.MatchString(err.Error())
}
