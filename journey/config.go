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

// Journeys are the journeys of the messages in one database. If producer and
// consumers have databases of their own, ask each of them.
type Journeys struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// New returns the journeys in db, or an error that names each field of config that
// cannot be used. With roles, the login needs the role operator.
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

// snapshot runs work in a transaction that sees the tables as of one moment: a
// message that moves meanwhile is in one place.
func (j *Journeys) snapshot(ctx context.Context, work func(tx *sql.Tx) error) error {
	return j.dialect.Read(ctx, j.db, func(tx *sql.Tx) error {
		if !j.dialect.SQLite() { // where each transaction has a snapshot
			if _, err := tx.ExecContext(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`); err != nil {
				return err
			}
		}
		return work(tx)
	})
}
