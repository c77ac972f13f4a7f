package parked

import (
	"context"
	"database/sql"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	store "github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// Config configures [Messages]. The zero value is ready for production use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// WithoutContent leaves Size and Error out of lists, so that a database user with
	// the role of a watcher can call them, see docs/roles.md. Get fails for such a user,
	// because it reads the message.
	// Defaults to false.
	WithoutContent bool
}

// Messages are the parked messages in a consumer's database.
type Messages struct {
	db      *sql.DB
	dialect dialect.Dialect
	store   *store.Store
	columns string // of a message, for scanMessage
}

// New returns the parked messages in db, or an error that names each field of config
// that cannot be used. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Messages, error) {
	config.Schema = config.Schema.WithDefaults()
	s, err := store.NewStore(db, config.Schema)
	if err != nil {
		return nil, fields.Refused("parked", err)
	}
	columns := messageColumns
	if config.WithoutContent {
		columns = strings.NewReplacer("length(p.envelope)", "0", "p.error,", "'',").Replace(columns)
	}
	return &Messages{db, s.Dialect(), s, columns}, nil
}

func (m *Messages) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Read(ctx, m.db, work))
}

func (m *Messages) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Write(ctx, m.db, work))
}
