package journey

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures [Journeys]. The zero value is ready for production use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config
}

// Journeys finds the journeys of the messages in one database. If the producer and the
// consumers have separate databases, create a Journeys for each database, and ask both.
type Journeys struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// New returns a Journeys for db. If config is invalid, the error names each invalid
// field. If you use roles, the login needs the role operator.
func New(db *sql.DB, config Config) (*Journeys, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("journey", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("journey: %w", err)
	}
	return &Journeys{db, d}, nil
}

// snapshot calls f in a transaction that sees all tables as they were at one moment. So
// a message that moves to another table during the call appears in only one table.
func (j *Journeys) snapshot(ctx context.Context, f func(tx *sql.Tx) error) error {
	return j.dialect.Look(ctx, j.db, func(tx *sql.Tx) error {
		if !j.dialect.SQLite() { // in SQLite, each transaction has a snapshot
			if _, err := tx.ExecContext(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`); err != nil {
				return err
			}
		}
		return f(tx)
	})
}
