package handled

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures a [Log]. The zero value is ready for production use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config
}

// Log reads the inbox of all consumers. It needs the database role of an operator or a
// watcher.
type Log struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// New returns a Log for the inbox in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Log, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("handled", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("handled: %w", err)
	}
	return &Log{db, d}, nil
}
