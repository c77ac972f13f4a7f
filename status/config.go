package status

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures a [Reader]. The zero value is ready for production use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config
}

// Reader reads the state of the tables.
type Reader struct {
	db      *sql.DB
	dialect dialect.Dialect
}

// New returns a Reader of the tables in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Reader, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("status", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return &Reader{db, d}, nil
}

func (r *Reader) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, r.db, r.dialect.Look(ctx, r.db, work))
}
