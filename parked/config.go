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

	// WithoutContent makes lists leave out Size and Error. A database user with the role of
	// a watcher can then list messages, see docs/roles.md. Get fails for such a user,
	// because it reads the content of the message. Defaults to false.
	WithoutContent bool
}

// Messages gives access to the parked messages in a consumer's database.
type Messages struct {
	db      *sql.DB
	dialect dialect.Dialect
	store   *store.Store
	columns string // columns of a message that scanMessage reads
}

// New returns a Messages for the parked messages in db. If config is invalid, the error
// names each invalid field. The tables must exist, see schema.Up.
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
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Look(ctx, m.db, work))
}

func (m *Messages) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, m.db, m.dialect.Write(ctx, m.db, work))
}
