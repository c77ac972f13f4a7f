package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dsn"
)

// ErrNotDurable says that the database may lose what it has committed.
var ErrNotDurable = errors.New("the database may lose commits in a crash")

// Durability reports whether commits made through db survive a crash of the
// database's server: nil, or an error that wraps [ErrNotDurable] and says which
// setting is in the way and how to change it, or the database's own error. It
// is meant for a warning at start, and changes nothing. db is a *sql.DB, a
// *sql.Conn or a *sql.Tx.
//
// A message is acknowledged after the commit, and an event is deleted after it
// was sent. If the commit is lost then, its effect is lost and nothing repeats
// it. What is looked at is PostgreSQL's synchronous_commit (off) and fsync
// (off), and whether outbox, inbox or parked messages are in unlogged tables;
// in SQLite it is PRAGMA synchronous (OFF).
func Durability(ctx context.Context, db querier, config Config) error {
	if err := config.on(db); err != nil {
		return err
	}
	config = config.WithDefaults()
	why, err := config.notDurable(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: durability: %w", dsn.Hide(err))
	case why != "":
		return fmt.Errorf("schema: %w: %s", ErrNotDurable, why)
	}
	return nil
}

func (c Config) notDurable(ctx context.Context, db querier) (why string, err error) {
	if c.Dialect == SQLite {
		var synchronous int
		err := db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous)
		if err == nil && synchronous == 0 {
			why = "PRAGMA synchronous is OFF: set it to NORMAL or FULL in the data source name"
		}
		return why, err
	}
	var synchronous, fsync, unlogged string
	query := fmt.Sprintf(`SELECT current_setting('synchronous_commit'), current_setting('fsync'), COALESCE(string_agg(relname, ', '), '')
		FROM pg_class WHERE relpersistence = 'u' AND oid IN (to_regclass('%s'), to_regclass('%s'), to_regclass('%s'))`,
		c.Table("outbox"), c.Table("inbox"), c.Table("parked"))
	err = db.QueryRowContext(ctx, query).Scan(&synchronous, &fsync, &unlogged)
	switch {
	case err != nil:
		return "", err
	case fsync == "off":
		why = "fsync is off: set it to on in postgresql.conf"
	case synchronous == "off":
		why = "synchronous_commit is off: set it to on (ALTER ROLE ... SET synchronous_commit = on, or in the data source name)"
	case unlogged != "":
		why = fmt.Sprintf("unlogged tables (%s) are empty after a crash: run ALTER TABLE ... SET LOGGED", unlogged)
	}
	return why, nil
}
