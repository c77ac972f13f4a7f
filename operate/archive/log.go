package archive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate/internal/rows"
	"github.com/watermill-once/once/schema"
)

// Log reads the inbox of all consumers. It needs the database role of an operator or a watcher.
type Log struct {
	db rows.DB
}

// New returns a Log for the inbox in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func New(db *sql.DB, config schema.Config) (*Log, error) {
	d, err := rows.Open("archive", db, config)
	if err != nil {
		return nil, err
	}
	return &Log{d}, nil
}

const (
	settlePoll = 100 * time.Millisecond

	// margin is the time between the result of Settled and the call: a server can be slow to
	// register a transaction that begins, and its clock can be set back.
	margin = time.Minute
)

// ErrReplica means that the database is a replica, which does not know the primary's transactions.
var ErrReplica = errors.New("the database is a replica: use the primary")

// Settled returns a time about a minute before the call, before which no further message can appear
// as handled, so that an export up to this time is complete.
//
// The time of a row is the beginning of its transaction, but the row appears at its end. Settled
// therefore waits for the transactions of this database that were running. If ctx ends before that,
// the error names their sessions.
//
// With PostgreSQL, the database must be the primary. Otherwise Settled fails with [ErrReplica].
func (l *Log) Settled(ctx context.Context) (time.Time, error) {
	at, err := l.settled(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("archive: settled: %w", err)
	}
	return at.Add(-margin), nil
}

// running finds the transactions that may still insert into the inbox, by the lock on their own
// virtual id. A prepared transaction has no session, but keeps its lock on the inbox.
const running = `
	SELECT virtualtransaction, COALESCE(CAST(pid AS text), 'prepared') FROM pg_locks
	WHERE granted AND (
		locktype = 'virtualxid' AND pid IN (
			SELECT pid FROM pg_stat_activity
			WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid())
		OR pid IS NULL AND locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = '{inbox}'::regclass
		   AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

func (l *Log) settled(ctx context.Context) (time.Time, error) {
	if l.db.SQLite() {
		return l.lastWriterEnded(ctx)
	}
	at, err := l.clock(ctx)
	if err != nil {
		return time.Time{}, err
	}
	// A transaction that begins after this query has a later time than at.
	waitFor, err := l.transactions(ctx, running)
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for err == nil && len(waitFor) > 0 {
		select {
		case <-tick.C:
			these := l.db.Strings(slices.Collect(maps.Keys(waitFor)))
			waitFor, err = l.transactions(ctx, running+` AND virtualtransaction {among $1 text}`, these)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if ctx.Err() != nil && len(waitFor) > 0 {
		return time.Time{}, fmt.Errorf("transactions that began before have not ended, and may still add a row: sessions %s: %w",
			strings.Join(slices.Sorted(maps.Values(waitFor)), ", "), ctx.Err())
	}
	return at, err
}

// In SQLite, the time of a row is the time of its insert.
func (l *Log) lastWriterEnded(ctx context.Context) (at time.Time, err error) {
	err = l.db.Write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, l.db.SQL(`DELETE FROM {inbox} WHERE 1 = 0`)); err != nil {
			return err
		}
		var ms int64
		err := tx.QueryRowContext(ctx, l.db.SQL(`SELECT {clock}`)).Scan(&ms)
		at = time.UnixMilli(ms)
		return err
	})
	return at, err
}

func (l *Log) clock(ctx context.Context) (at time.Time, err error) {
	var micros int64
	var replica bool
	err = l.db.Read(ctx, l.db.DB, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_is_in_recovery()`).
			Scan(&micros, &replica)
	})
	if err == nil && replica {
		err = ErrReplica
	}
	return time.UnixMicro(micros), err
}

func (l *Log) transactions(ctx context.Context, query string, args ...any) (sessions map[string]string, err error) {
	err = l.db.Read(ctx, l.db.DB, func(tx *sql.Tx) error {
		sessions = map[string]string{}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var transaction, session string
			err := scan(&transaction, &session)
			sessions[transaction] = session
			return err
		}, l.db.SQL(query), args...)
	})
	return sessions, err
}
