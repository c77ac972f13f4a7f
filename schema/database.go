package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dsn"
)

var (
	// ErrDialect says that the database is not of the kind that Config.Dialect
	// says.
	ErrDialect = errors.New("the database is of another kind than Dialect says")

	// ErrEncoding says that the database, or the connection to it, is not in
	// UTF-8. It cannot keep every message id, key and error text.
	ErrEncoding = errors.New("the database is not in UTF-8")
)

// fits refuses a database that cannot hold the tables, whatever is in it.
func (c Config) fits(ctx context.Context, db querier) error {
	if err := c.isKind(ctx, db); err != nil {
		return err
	}
	if c.Dialect == SQLite { // which converts, and keeps all of Unicode either way
		return nil
	}
	return isUTF8(ctx, db)
}

// isKind asks the database for its version. Each kind has a function of its own
// for that, or an answer of its own.
func (c Config) isKind(ctx context.Context, db querier) error {
	if c.Dialect == SQLite {
		_, err := versionOf(ctx, db, "sqlite_version")
		if err == nil {
			return nil
		}
		if version, other := versionOf(ctx, db, "version"); other == nil {
			return c.notKind(version)
		}
		if strings.Contains(err.Error(), "sqlite_version") { // in a transaction PostgreSQL answers one question
			return c.notKind("not SQLite")
		}
		return err
	}
	version, err := versionOf(ctx, db, "version")
	switch {
	case err == nil && ofMySQL(version):
		return c.notKind(version)
	case err == nil:
		return nil
	}
	if version, other := versionOf(ctx, db, "sqlite_version"); other == nil {
		return c.notKind("SQLite " + version)
	}
	return err
}

func versionOf(ctx context.Context, db querier, function string) (version string, err error) {
	err = db.QueryRowContext(ctx, "SELECT "+function+"()").Scan(&version)
	return version, dsn.Hide(err)
}

// ofMySQL tells MySQL, MariaDB and their kin by a version without a name before
// it. PostgreSQL's, and that of what is built on it, begins with the name.
func ofMySQL(version string) bool { return version != "" && version[0] >= '0' && version[0] <= '9' }

func (c Config) notKind(version string) error {
	remedy := "use a database of that kind"
	switch {
	case ofMySQL(version):
		if !strings.Contains(version, "MariaDB") {
			version = "MySQL " + version
		}
		remedy = "there is no dialect for it, use PostgreSQL or SQLite"
	case strings.HasPrefix(version, "SQLite"):
		remedy = "set Config.Dialect to schema.SQLite"
	case strings.HasPrefix(version, "PostgreSQL"):
		version = strings.Join(strings.Fields(version)[:2], " ")
		remedy = "set Config.Dialect to schema.PostgreSQL"
	}
	return fmt.Errorf("%w: Dialect is %q, the database is %s: %s", ErrDialect, c.Dialect, version, remedy)
}

// isUTF8 asks for the encoding of the database, and for the one in which this
// connection is told what is in it: with another one a driver's text in UTF-8 is
// stored as something else.
func isUTF8(ctx context.Context, db querier) error {
	var name, server, client string
	err := db.QueryRowContext(ctx, `SELECT current_database(), current_setting('server_encoding'), current_setting('client_encoding')`).
		Scan(&name, &server, &client)
	switch {
	case err != nil:
		return dsn.Hide(err)
	case server != "UTF8":
		return fmt.Errorf("%w: database %q is encoded in %s: make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, "+
			"and move the data with pg_dump and pg_restore", ErrEncoding, name, server)
	case client != "UTF8":
		return fmt.Errorf("%w: client_encoding of the connection to %q is %s: set it to UTF8 in the data source name, "+
			"or with ALTER ROLE ... SET client_encoding = 'UTF8'", ErrEncoding, name, client)
	}
	return nil
}
