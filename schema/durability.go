package schema

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotDurable means that the database may lose commits in a crash.
var ErrNotDurable = errors.New("the database may lose commits in a crash")

// Durability returns nil if commits through db survive a crash of the database server.
// Otherwise it returns an error that wraps [ErrNotDurable] and names the setting to
// change, or an error that wraps [ErrDialect], or the database's own error. Use
// Durability to log a warning when a service starts. The parameter db is a *sql.DB, a
// *sql.Conn or a *sql.Tx. Durability changes nothing.
//
// A message is acked after its commit, and an event is deleted after it was sent. If a
// crash then undoes the commit, its effect is lost: no code repeats it, because the
// message or the event no longer exists. For PostgreSQL, Durability checks
// synchronous_commit and fsync, and whether the outbox, the inbox or the parked
// messages are in unlogged tables. For SQLite it checks PRAGMA synchronous.
func Durability(ctx context.Context, db querier, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()
	why, err := config.notDurable(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: durability: %w", config.explain(ctx, db, err))
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
