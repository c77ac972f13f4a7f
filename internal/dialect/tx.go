package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dsn"
)

// ErrCommitUnknown means that the connection was lost during a commit. The transaction
// may or may not have taken effect. The caller must find out which before it repeats
// the work.
var ErrCommitUnknown = errors.New("outcome of the commit is unknown")

// Write runs the function work in a transaction, and commits it. It rolls back if the
// function returns an error or panics. It does not recover the panic.
//
// Each statement sees everything that was committed before the statement started (READ
// COMMITTED), whatever the default of the database is. A statement may wait for a lock,
// and the statements after it must then see the changes of other transactions.
//
// Use Write for single statements, too. lib/pq sends a statement with arguments in two
// round trips. Behind a pooler in transaction mode, a statement of another client could
// come between these round trips.
//
// If the process freezes, the server rolls back after ten seconds, so that the locks
// are released. Therefore the function must not pause for long between its statements.
// For a longer function, use [Dialect.InTx].
func (d Dialect) Write(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	var options *sql.TxOptions
	if !d.SQLite() { // SQLite has one writer at a time, and no isolation levels
		options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return d.run(StartWithText(ctx), db, options, d.bounded(ctx, d.replanning(ctx, db, work)), d.Commit)
}

// InTx is like [Dialect.Write], for a function of the user of this library. It has no
// time limit, and uses the database's default isolation level.
func (d Dialect) InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.run(ctx, db, nil, work, d.Commit)
}

// bounded adds a time limit to the function work: if no statement arrives for ten
// seconds, the server ends the transaction, because the process may be frozen, or its
// host may be gone.
func (d Dialect) bounded(ctx context.Context, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if d.SQLite() {
		return work
	}
	return func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = 10000`); err != nil {
			return err
		}
		return work(tx)
	}
}

// Read is like [Dialect.Write], for a function that changes nothing. With SQLite it
// does not wait for the writer. It never returns [ErrCommitUnknown].
func (d Dialect) Read(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	options := &sql.TxOptions{ReadOnly: true}
	if !d.SQLite() { // PostgreSQL needs no read-only transaction, because readers do not block writers
		options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return d.run(ctx, db, options, d.replanning(ctx, db, work), func(tx *sql.Tx) error {
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("end of a read: %w", err)
		}
		return nil
	})
}

func (d Dialect) run(
	ctx context.Context, db *sql.DB, options *sql.TxOptions, work, commit func(tx *sql.Tx) error,
) error {
	return d.Explain(ctx, db, runTx(ctx, db, options, work, commit))
}

func runTx(
	ctx context.Context, db *sql.DB, options *sql.TxOptions, work, commit func(tx *sql.Tx) error,
) error {
	tx, release, err := Begin(ctx, db, options)
	if err != nil {
		return err
	}
	defer release()
	if err := work(tx); err != nil {
		return err
	}
	return commit(tx)
}

// Begin begins a transaction. The context limits only the wait for a connection. If ctx
// ends later, the transaction is not rolled back, because this could happen during the
// commit, and the outcome would then be unknown. Call the function release with defer:
// it rolls back the transaction if the transaction is not committed, and returns the
// connection to the pool.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (tx *sql.Tx, release func(), err error) {
	// After a restart of the database, every idle connection of the pool is dead, and
	// fails when it is used. So Begin tries more often than there are idle connections.
	for range db.Stats().Idle + 2 {
		var conn *sql.Conn
		if conn, err = db.Conn(ctx); err != nil {
			break
		}
		if tx, err = conn.BeginTx(context.WithoutCancel(ctx), options); err == nil {
			return tx, func() {
				_ = tx.Rollback() // after a commit it returns ErrTxDone; otherwise the caller returns the original error
				_ = conn.Close()
			}, nil
		}
		if isReplica(err) {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // see replicaError
		}
		err = BeginError(err)
		_ = conn.Close()
		if !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	return nil, nil, fmt.Errorf("begin: %w", dsn.Hide(err))
}

type startsWithText struct{}

// StartWithText returns a context for a transaction whose first statement has no
// arguments and comes from this module. The caller must end the transaction if this
// statement fails. Therefore the driver may send BEGIN together with the statement, see
// package lazytx.
func StartWithText(ctx context.Context) context.Context {
	return context.WithValue(ctx, startsWithText{}, true)
}

// StartsWithText reports whether ctx was returned by [StartWithText].
func StartsWithText(ctx context.Context) bool { return ctx.Value(startsWithText{}) != nil }

// Commit commits a transaction that [Begin] has begun. The error wraps
// [ErrCommitUnknown], unless the database itself reports that the commit failed.
func (d Dialect) Commit(tx *sql.Tx) error {
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case refused(err), rolledBack(err), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("commit: %w", err)
	default:
		return fmt.Errorf("commit: %w: %w", ErrCommitUnknown, err)
	}
}

// rolledBack reports whether the driver rolled back instead of committing. A driver
// does this if an earlier statement failed and the error was ignored. The error of the
// driver has no code, and this package imports no driver, so rolledBack compares the
// string of the error.
func rolledBack(err error) bool {
	switch err.Error() {
	case "pq: could not complete operation in a failed transaction", // lib/pq: ErrInFailedTransaction
		"commit unexpectedly resulted in rollback": // pgx: ErrTxCommitRollback
		return true
	}
	return false
}
