package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/watermill-once/once/internal/usercode"
)

// ErrCommitUnknown means that the connection was lost during a commit, which may have taken effect.
// Find out before you repeat the work.
var ErrCommitUnknown = errors.New("outcome of the commit is unknown")

// Write runs the function work in a transaction, and commits it. It rolls back if work fails or
// panics, and does not recover the panic.
//
// Each statement sees everything that was committed before the statement started (READ COMMITTED),
// whatever the default of the database is. A statement may wait for a lock, and later ones must
// then see the changes of other transactions.
//
// Use Write for single statements, too. lib/pq sends a statement with arguments in two round trips.
// Behind a pooler in transaction mode, a statement of another client could come between them.
//
// If the process freezes, the server rolls back after ten seconds, so that the locks are released.
// Therefore work must not pause for long; for a longer one use [Dialect.InTx].
func (d Dialect) Write(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	var options *sql.TxOptions
	if !d.SQLite() { // SQLite has one writer at a time, and no isolation levels
		options = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return d.run(StartWithText(ctx), db, options, d.bounded(ctx, db, d.replanning(ctx, db, work)), d.Commit)
}

// InTx is like [Dialect.Write], for a function of the user, without a time limit, at the database's
// default isolation level. If it ends the transaction with a statement, the error wraps [ErrEnded],
// and nothing is committed after this statement. With plain lib/pq or pgx, one that also begins
// another transaction is only noticed in a [Sample].
func (d Dialect) InTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.Explain(ctx, db, d.inTx(ctx, db, work))
}

func (d Dialect) inTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) (err error) {
	check := d.Check()
	tx, release, err := d.BeginScope(ctx, db, check)
	if err != nil {
		return err
	}
	defer func() {
		Distrust(tx, err)
		release()
	}()
	switch {
	case check.Sent: // the driver sends the mark if it is needed
	case d.SQLite() || d.sample.Next():
		if _, err := tx.ExecContext(context.WithoutCancel(ctx), check.Mark); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
	default:
		check = nil
	}
	if err := work(tx); err != nil {
		return err
	}
	return d.commitChecked(ctx, tx, check)
}

// bounded limits the time: if no statement arrives for ten seconds, the server ends the
// transaction, because the process may be frozen, or its host gone. It also restores the settings
// of the session.
func (d Dialect) bounded(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if d.SQLite() {
		return work
	}
	settings := `SET LOCAL idle_in_transaction_session_timeout = 10000`
	if restore := d.restore(db); restore != "" {
		settings += `; ` + restore
	}
	return func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, settings); err != nil {
			return err
		}
		return work(tx)
	}
}

func (d Dialect) restored(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	restore := d.restore(db)
	if restore == "" {
		return work
	}
	return func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, restore); err != nil {
			return err
		}
		return work(tx)
	}
}

// Read is like [Dialect.Write], for a function that changes nothing. With SQLite it does not wait
// for the writer, and it never returns [ErrCommitUnknown].
func (d Dialect) Read(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.read(ctx, db, sql.LevelReadCommitted, work)
}

func (d Dialect) read(ctx context.Context, db *sql.DB, level sql.IsolationLevel, work func(tx *sql.Tx) error) error {
	options := &sql.TxOptions{ReadOnly: true}
	if !d.SQLite() { // PostgreSQL needs no read-only transaction, because readers do not block writers
		options = &sql.TxOptions{Isolation: level}
	}
	return d.run(ctx, db, options, d.restored(ctx, db, d.replanning(ctx, db, work)), func(tx *sql.Tx) error {
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
	tx, conn, release, err := begin(ctx, db, options)
	if err != nil {
		return err
	}
	defer release()
	if err = work(tx); err == nil {
		err = commit(tx)
	}
	if isReadOnly(err) {
		_ = tx.Rollback()
		leave(conn)
	}
	return err
}

// leave closes a connection to a server that has become a replica: every write on it would fail,
// while the address may lead to the new primary.
func leave(conn *sql.Conn) {
	_ = conn.Raw(func(conn any) error {
		if lazy, ok := conn.(interface{ HangUp() }); ok { // package lazytx
			lazy.HangUp()
		} else {
			HangUp(conn)
		}
		return driver.ErrBadConn
	})
}

// HangUp closes a connection of pgx. If it comes from a pgxpool, database/sql would only return it to
// this pool, which does not know that its server has become a replica. This package imports no
// driver, so the method is called by its name. For other drivers, HangUp does nothing.
func HangUp(conn any) {
	method := reflect.ValueOf(conn).MethodByName("Conn")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return
	}
	inner, ok := reflect.TypeAssert[interface {
		Close(ctx context.Context) error
	}](method.Call(nil)[0])
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // Close tells the server
	defer cancel()
	_ = inner.Close(ctx)
}

// Begin begins a transaction. ctx limits only the wait for a connection: a rollback at its end
// could come during the commit, whose outcome would be unknown. Defer release, which rolls back
// unless it is committed, and returns the connection to the pool.
func Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (tx *sql.Tx, release func(), err error) {
	tx, _, release, err = begin(ctx, db, options)
	return tx, release, err
}

func begin(ctx context.Context, db *sql.DB, options *sql.TxOptions) (tx *sql.Tx, conn *sql.Conn, release func(), err error) {
	// After a restart of the database, every idle connection fails when it is used.
	for range db.Stats().Idle + 2 {
		if conn, err = db.Conn(ctx); err != nil {
			break
		}
		if tx, err = conn.BeginTx(context.WithoutCancel(ctx), options); err == nil {
			return tx, conn, func() {
				_ = tx.Rollback() // after a commit it returns ErrTxDone; otherwise the caller returns the original error
				_ = conn.Close()
			}, nil
		}
		if isReplica(err) {
			leave(conn) // see replicaError
		}
		err = BeginError(err)
		_ = conn.Close()
		if !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	return nil, nil, nil, fmt.Errorf("begin: %w", usercode.HideDSN(err))
}

type startsWithText struct{}

// StartWithText returns a context for a transaction that begins with a statement of this module
// without arguments, and ends if it fails, so that package lazytx may send BEGIN together with it.
func StartWithText(ctx context.Context) context.Context {
	return context.WithValue(ctx, startsWithText{}, true)
}

// StartsWithText reports whether ctx was returned by [StartWithText].
func StartsWithText(ctx context.Context) bool { return ctx.Value(startsWithText{}) != nil }

// Commit wraps [ErrCommitUnknown], unless the database itself reports that the commit failed.
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

// rolledBack reports whether the driver rolled back instead, because the error of an earlier
// statement was ignored. Its error has no code, and this package imports no driver, so the text is
// compared.
func rolledBack(err error) bool {
	switch err.Error() {
	case "pq: could not complete operation in a failed transaction", // lib/pq: ErrInFailedTransaction
		"commit unexpectedly resulted in rollback": // pgx: ErrTxCommitRollback
		return true
	}
	return false
}

// InOrder makes PostgreSQL read rows in the order of an index until the end of the transaction. It
// assumes that conditions are independent, so it often expects too few matching rows, and would
// read and sort them all to return one page.
//
// It also makes PostgreSQL choose the index with the fewest rows. An index of a tenant and the id
// lists rows in the order of the table, which PostgreSQL does not know: it expects to read pages in
// a random order, and would rather read the rows of all tenants.
func (d Dialect) InOrder(ctx context.Context, tx *sql.Tx) error {
	if d.SQLite() {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
		set_config('random_page_cost', '0', true), set_config('seq_page_cost', '0', true)`)
	return err
}

// Look is like [Dialect.Read], for queries whose result a person is waiting for. PostgreSQL must
// not compile them (JIT), for up to a second, as it would, because its estimate includes rows that
// LIMIT clauses never read.
func (d Dialect) Look(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.Read(ctx, db, d.withoutJIT(ctx, work))
}

// Snapshot is like [Dialect.Look], and all statements see the tables at one moment. The level is
// set at the begin, because [Dialect.Read] may execute a query before work.
func (d Dialect) Snapshot(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.read(ctx, db, sql.LevelRepeatableRead, d.withoutJIT(ctx, work))
}

func (d Dialect) withoutJIT(ctx context.Context, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if d.SQLite() {
		return work
	}
	return func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SET LOCAL jit = off`); err != nil {
			return err
		}
		return work(tx)
	}
}
