package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures [Messages]. The zero value is ready for production use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// WithoutContent makes lists leave out Size, Metadata and LastError. A database user
	// with the role of a watcher can then call List, see docs/roles.md. Get fails for such
	// a user, because it reads the payload. Defaults to false.
	WithoutContent bool
}

// Messages gives access to the messages in an outbox.
type Messages struct {
	db      *sql.DB
	dialect dialect.Dialect
	columns string // columns of a message that scanMessage reads
}

// New returns a Messages for the outbox in db. If config is invalid, the error names
// each invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Messages, error) {
	config.Schema = config.Schema.WithDefaults()
	err := config.Schema.Validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fields.Refused("pending", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("pending: %w", err)
	}
	columns := messageColumns
	if config.WithoutContent {
		columns = strings.NewReplacer("octet_length(o.payload)", "0", "CAST(o.metadata AS text)", "''",
			"COALESCE(o.last_error, '')", "''").Replace(columns)
	}
	return &Messages{db, d, columns}, nil
}

func (m *Messages) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Look(ctx, m.db, work))
}

func (m *Messages) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Write(ctx, m.db, work))
}
