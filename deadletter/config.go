package deadletter

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Config configures [Letters] or a [SentLog]. The zero value is ready for production
// use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// InboxRetention is how long all consumers remember the ids of messages. Set it to the
	// shortest dedup.Config.Retention of the consumers. If a message was sent longer ago, a
	// consumer may handle a copy of it a second time, so its replay needs Plan.Force.
	// Defaults to 7 days.
	InboxRetention time.Duration

	// ReplayLease is how long a process that runs ReplayMatching or Resume owns the replay
	// after each batch. If Plan.Rate is set, the process owns it a second longer. If the
	// process dies, Resume can continue the replay after this time. The minimum is 500 ms.
	// Defaults to one minute.
	ReplayLease time.Duration

	// WithoutContent makes lists leave out Size, Metadata and Letter.Error. A database user
	// with the role of a watcher can then call List, see docs/roles.md. Get, Groups and
	// Export fail for such a user. Defaults to false.
	WithoutContent bool
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.InboxRetention = cmp.Or(c.InboxRetention, 7*24*time.Hour)
	c.ReplayLease = cmp.Or(c.ReplayLease, time.Minute)
	return c
}

func (c Config) validate() error {
	err := c.Schema.Validate()
	if c.InboxRetention < 0 {
		err = errors.Join(err, fmt.Errorf("InboxRetention is %v: negative", c.InboxRetention))
	}
	if c.ReplayLease < 500*time.Millisecond {
		err = errors.Join(err, fmt.Errorf("ReplayLease is %v: less than 500 ms", c.ReplayLease))
	}
	return err
}

// open returns a copy of t that uses the database db and the settings in config. If
// config is invalid, the error names each invalid field.
func (t table) open(db *sql.DB, config Config) (table, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return table{}, fields.Refused("deadletter", err)
	}
	if t.dialect, err = dialect.New(config.Schema); err != nil {
		return table{}, fmt.Errorf("deadletter: %w", err)
	}
	t.db, t.inboxRetention, t.replayLease = db, config.InboxRetention, config.ReplayLease
	t.content = strings.NewReplacer()
	t.withoutContent = config.WithoutContent
	if config.WithoutContent {
		t.content = strings.NewReplacer("octet_length(payload)", "0", "CAST(metadata AS text)", "''", "last_error", "''")
	}
	return t, nil
}
