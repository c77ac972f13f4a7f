package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dsn"
)

// ErrCommitUnknown says that the connection was lost while a commit was under
// way: the transaction may or may not have taken effect. Whoever sees it has
// to look, never to repeat blindly.
var ErrCommitUnknown = errors.New("outcome of the commit is unknown")

// Write runs work in a transaction and commits it. The transaction is rolled
// back when work returns an error or panics (the panic goes on).
//
// Each statement sees what was committed before it began, whatever the default
// of the database: work may have waited for a lock before it looks, and passes
// over what others have settled meanwhile.
//
// Even single statements go through it: lib/pq sends a statement with
// arguments in two round trips, and behind a pooler in transaction mode
// another client's statement could come between them.
//
// A process that stands still in the middle keeps what it has locked for ten
// seconds: then the server rolls back. Work is statements of ours, one after
// the other; what may take its time between them goes through [Dialect.InTx].
func (d Dialect) Write(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	var options *sql.TxOptions
	if !d.SQLite() { // it has one writer
		options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return run(StartWithText(ctx), db, options, d.bounded(ctx, work), d.Commit)
}

// InTx is [Dialect.Write] for somebody else's work, which takes as long as it
// likes, and has the isolation that is the default of the database.
func (d Dialect) InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return run(ctx, db, nil, work, d.Commit)
}

// bounded has the server end the transaction if it does not hear of work for
// long: its process may have been stopped, or its host have gone.
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

// Read is [Dialect.Write] for work that changes nothing: in SQLite it does not
// wait for the writer, and a commit that fails leaves nothing unknown.
func (d Dialect) Read(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	options := &sql.TxOptions{ReadOnly: true}
	if !d.SQLite() { // where writers do not wait for readers
		options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return run(ctx, db, options, work, func(tx *sql.Tx) error {
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("end of a read: %w", err)
		}
		return nil
	})
}

func run(
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

// Begin begins a transaction that ctx does not end: ctx bounds the wait for a
// connection, and whatever statements are given. A context that ended the
// transaction by itself could do so while the commit is under way, and the
// outcome would be in doubt for no reason. release, to be deferred, rolls back
// what was not committed and gives the connection back.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (tx *sql.Tx, release func(), err error) {
	// After a restart of the database every idle connection of the pool is
	// dead and says so when it is used.
	for range db.Stats().Idle + 2 {
		var conn *sql.Conn
		if conn, err = db.Conn(ctx); err != nil {
			break
		}
		if tx, err = conn.BeginTx(context.WithoutCancel(ctx), options); err == nil {
			return tx, func() {
				_ = tx.Rollback() // after a commit it says ErrTxDone; else the error that led here is the one to tell
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

// StartWithText says that the first statement of the transaction which is
// begun with the context is one of ours, a text without arguments, and that
// nothing follows if it fails. So BEGIN may go with it, see package lazytx.
func StartWithText(ctx context.Context) context.Context {
	return context.WithValue(ctx, startsWithText{}, true)
}

// StartsWithText says whether [StartWithText] did.
func StartsWithText(ctx context.Context) bool { return ctx.Value(startsWithText{}) != nil }

// Commit commits a transaction of [Begin]. An error wraps [ErrCommitUnknown]
// unless the database itself said that the commit failed.
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

// rolledBack says that there was nothing to commit: a statement had failed
// before, whoever did not look at its error, and the driver has rolled back.
// Drivers have an error without a code for that, and none is imported here.
func rolledBack(err error) bool {
	switch err.Error() {
	case "pq: could not complete operation in a failed transaction", // lib/pq: ErrInFailedTransaction
		"commit unexpectedly resulted in rollback": // pgx: ErrTxCommitRollback
		return true
	}
	return false
}
