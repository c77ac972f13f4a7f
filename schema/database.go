package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dsn"
)

var (
	// ErrDialect means that the database is not of the kind in Config.Dialect.
	ErrDialect = errors.New("the database is not of the kind that Dialect names")

	// ErrEncoding means that the database, or the connection to it, does not use UTF-8.
	// With another encoding, some message ids, keys and error texts could not be stored.
	ErrEncoding = errors.New("the database is not in UTF-8")
)

// checkDatabase returns an error if the database is not of the configured kind, or if
// it is PostgreSQL and does not use UTF-8.
func (c Config) checkDatabase(ctx context.Context, db querier) error {
	if err := c.checkDialect(ctx, db); err != nil {
		return err
	}
	if c.Dialect == SQLite { // every encoding of SQLite can store all of Unicode
		return nil
	}
	return checkUTF8(ctx, db)
}

// checkDialect returns an error that wraps ErrDialect if the database is not of the
// configured kind. To find the kind of the database, it calls the function that returns
// the version of the database. This function has another name, or another result, in
// each kind of database.
func (c Config) checkDialect(ctx context.Context, db querier) error {
	if c.Dialect == SQLite {
		_, err := versionOf(ctx, db, "sqlite_version")
		if err == nil {
			return nil
		}
		if version, other := versionOf(ctx, db, "version"); other == nil {
			return c.dialectError(version)
		}
		if strings.Contains(err.Error(), "sqlite_version") { // in a transaction, PostgreSQL refuses every query after an error
			return c.dialectError("not SQLite")
		}
		return err
	}
	version, err := versionOf(ctx, db, "version")
	switch {
	case err == nil && isMySQL(version):
		return c.dialectError(version)
	case err == nil:
		return nil
	}
	if version, other := versionOf(ctx, db, "sqlite_version"); other == nil {
		return c.dialectError("SQLite " + version)
	}
	return err
}

// explain returns an error that wraps ErrDialect if the database is not of the
// configured kind. In this case err only says that the database does not understand the
// SQL. Otherwise explain returns err.
func (c Config) explain(ctx context.Context, db querier, err error) error {
	if kind := c.checkDialect(ctx, db); errors.Is(kind, ErrDialect) {
		return kind
	}
	return dsn.Hide(err)
}

func versionOf(ctx context.Context, db querier, function string) (version string, err error) {
	err = db.QueryRowContext(ctx, "SELECT "+function+"()").Scan(&version)
	return version, dsn.Hide(err)
}

// isMySQL reports whether a version belongs to MySQL, MariaDB or a derivative. These
// versions begin with a digit. Versions of PostgreSQL and its derivatives begin with a
// name.
func isMySQL(version string) bool { return version != "" && version[0] >= '0' && version[0] <= '9' }

func (c Config) dialectError(version string) error {
	remedy := "use a database of that kind"
	switch {
	case isMySQL(version):
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

// checkUTF8 checks the encodings of the database and of the connection. With another
// client encoding, the server would read the UTF-8 strings of the driver as other
// characters.
func checkUTF8(ctx context.Context, db querier) error {
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
