package dialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
)

// ErrEnded means that a function of the user has ended its transaction with a statement such as
// COMMIT or ROLLBACK. database/sql does not notice this, and each later statement would take effect
// by itself.
var ErrEnded = fmt.Errorf("the transaction was ended by a statement such as COMMIT or ROLLBACK, "+
	"and its function must neither commit it nor roll it back: %w", sql.ErrTxDone)

type scope struct {
	schema Dialect // names the schema of the tables, whatever the function does to the search path
	conn   *sql.Conn
	closes *atomic.Bool // the connection must not go back to the pool
}

// scopes has the open transactions of the user's functions, which pass only the *sql.Tx on.
var scopes sync.Map // *sql.Tx -> scope

// BeginScope is like [Begin], for a transaction in which a function of the user runs.
func (d Dialect) BeginScope(ctx context.Context, db *sql.DB, c *Check) (tx *sql.Tx, release func(), err error) {
	named, err := d.find(ctx, db)
	if err != nil {
		return nil, nil, fmt.Errorf("begin: %w", err)
	}
	tx, conn, end, err := begin(WithCheck(ctx, c), db, nil)
	if err != nil {
		return nil, nil, err
	}
	closes := &atomic.Bool{}
	scopes.Store(tx, scope{named, conn, closes})
	return tx, func() {
		scopes.Delete(tx)
		if closes.Load() {
			_ = tx.Rollback()
			leave(conn)
		}
		end()
	}, nil
}

// Distrust closes the connection of tx, from BeginScope, after the end of tx, if the role of the
// session lacks a right, because a function of the user may have changed the role in an earlier
// transaction, or if its server has become a replica.
func Distrust(tx *sql.Tx, err error) {
	if !Distrusted(err) {
		return
	}
	if s, ok := scopes.Load(tx); ok {
		s.(scope).closes.Store(true) //nolint:forcetypeassert // nothing else is stored
	}
}

// Distrusted reports whether err means that a connection must not be used again, see [Distrust].
func Distrusted(err error) bool { return denied(err) || isReadOnly(err) }

// Ended returns ErrEnded if the driver of a transaction from [Dialect.BeginScope] says that none is
// open any more. It needs no round trip. It does not notice that another one was begun, see
// [Check].
func Ended(tx *sql.Tx) error {
	v, ok := scopes.Load(tx)
	if !ok {
		return nil
	}
	s := v.(scope) //nolint:forcetypeassert // nothing else is stored
	if s.schema.SQLite() {
		return endedInSQLite(tx)
	}
	ended := false
	_ = s.conn.Raw(func(conn any) error {
		if lazy, ok := conn.(interface{ Idle() bool }); ok { // package lazytx
			ended = lazy.Idle()
		} else {
			ended = Idle(conn)
		}
		return nil
	})
	if ended {
		return ErrEnded
	}
	return nil
}

// BEGIN succeeds only if no transaction is open.
func endedInSQLite(tx *sql.Tx) error {
	ctx := context.Background()
	_, err := tx.ExecContext(ctx, Probe)
	switch {
	case err == nil:
		_, _ = tx.ExecContext(ctx, `ROLLBACK`)
		return ErrEnded
	case strings.Contains(err.Error(), "within a transaction"):
		return nil
	}
	return err
}

// Probe finds out whether a transaction of SQLite is open.
const Probe = `BEGIN`

// Idle reports whether a connection of lib/pq or pgx has no open transaction. No method says so:
// this reads private fields, and returns false for other drivers, and for versions with other
// fields.
func Idle(conn any) bool {
	const idle = 'I' // in PostgreSQL's protocol
	v := reflect.ValueOf(conn)
	for _, path := range [...][]string{{"txnStatus"}, {"conn", "pgConn", "txStatus"}} {
		if status := fieldOf(v, path); status.IsValid() && status.Kind() == reflect.Uint8 {
			return status.Uint() == idle
		}
	}
	return false
}

func fieldOf(v reflect.Value, path []string) reflect.Value {
	for _, name := range path {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}

// Gone reports whether a [Check] or the driver has noticed that the transaction has ended.
func Gone(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, endedParameter) ||
		strings.Contains(text, "no such savepoint: "+savepoint) ||
		strings.Contains(text, "pq: unexpected transaction status") ||
		errors.Is(err, ErrEnded)
}

// Sample selects the transactions to check if the check needs a round trip, about a tenth of the
// time of a message: the first ones, because a function that ends its transaction probably does so
// from the beginning, one in checkEvery, and all after the first failed check.
type Sample struct {
	n   atomic.Int64
	all atomic.Bool
}

const (
	firstChecked = 100
	checkEvery   = 32
)

// Next reports whether to check the next transaction.
func (s *Sample) Next() bool {
	n := s.n.Add(1)
	return n <= firstChecked || n%checkEvery == 0 || s.all.Load()
}

// All makes Next select all transactions from now on.
func (s *Sample) All() { s.all.Store(true) }

// Skip makes Next continue as after n transactions. It is for tests.
func (s *Sample) Skip(n int64) { s.n.Store(n) }

// check is nil if the transaction has no mark.
func (d Dialect) commitChecked(ctx context.Context, tx *sql.Tx, check *Check) error {
	if !d.SQLite() { // in SQLite the check finds the same
		if err := Ended(tx); err != nil {
			return err
		}
	}
	if check != nil && !check.Sent {
		// After any other error, the commit fails too, and says what happened.
		if _, err := tx.ExecContext(context.WithoutCancel(ctx), check.SQL); Gone(err) {
			return d.ended(fmt.Errorf("check the transaction: %w", err))
		}
	}
	return d.ended(d.Commit(tx))
}

func (d Dialect) ended(err error) error {
	if !Gone(err) || errors.Is(err, sql.ErrTxDone) {
		return err
	}
	d.sample.All()
	return fmt.Errorf("%w: %w", ErrEnded, err)
}

// Check is a statement that fails if the current transaction is not the one that was begun, for
// example after COMMIT and BEGIN as statements.
type Check struct {
	SQL string

	// Mark marks the transaction for SQL, or is "" if that needs no statement.
	Mark string

	// Sent means that the driver sends SQL together with COMMIT, and Mark before a statement that
	// may end the transaction, see package lazytx.
	Sent bool
}

// Check returns a new Check.
func (d Dialect) Check() *Check {
	if d.SQLite() {
		return &Check{SQL: `RELEASE ` + savepoint, Mark: MarkSQLite}
	}
	return &Check{SQL: CheckTransaction, Mark: MarkTransaction}
}

// MarkTransaction creates a setting that exists only in this transaction of PostgreSQL, and takes a
// lock that nothing else takes. It takes no snapshot, after which SET TRANSACTION would fail.
const (
	MarkSQLite      = `SAVEPOINT ` + savepoint
	MarkTransaction = `SET LOCAL once.transaction = 'open'; LOCK TABLE ` + lockedTable + ` IN ACCESS SHARE MODE`

	lockedTable = `pg_catalog.pg_ts_template` // every user may read it, and its rows do not change
)

// CheckTransaction checks the mark of [MarkTransaction]. RESET ALL removes the setting, but not the
// lock. To find the lock is expensive, so it is sought only without the setting, by a query in a
// text: PostgreSQL would plan any other query in each check. If the transaction has ended, the error
// names a setting that does not exist.
const CheckTransaction = `SELECT current_setting(CASE WHEN current_setting('once.transaction', true) <> '' THEN 'server_version' ` +
	`WHEN query_to_xml('SELECT 1 FROM pg_locks WHERE locktype = ''relation'' AND pid = pg_backend_pid() ` +
	`AND relation = ''` + lockedTable + `''::regclass', true, true, '')::text <> '' ` +
	`THEN 'server_version' ELSE 'once.` + endedParameter + `' END)`

// If the transaction has ended, the error of Check.SQL contains one of these names: of a setting
// (PostgreSQL) or a savepoint (SQLite) that does not exist.
const (
	endedParameter = `transaction_was_ended_by_the_handler`
	savepoint      = `once_message`
)

type checkKey struct{}

// WithCheck passes the check of a transaction to the driver.
func WithCheck(ctx context.Context, c *Check) context.Context {
	return context.WithValue(ctx, checkKey{}, c)
}

// CheckOf returns the check in ctx, or nil.
func CheckOf(ctx context.Context) *Check {
	c, _ := ctx.Value(checkKey{}).(*Check)
	return c
}

// Late describes a statement that package lazytx may send together with COMMIT.
type Late struct {
	// Head is the length of the beginning of the statement, in bytes. Consecutive statements with
	// the same one are sent as one statement: the beginning once, then the rests, separated by
	// commas.
	Head int

	// Failed returns the caller's error if the statement has failed with err.
	Failed func(err error) error
}

// ErrLate is the error of both methods of LateResult.
var ErrLate = errors.New("the statement is sent later: its result is unknown")

// LateResult is the result of a statement that the driver has not sent yet.
type LateResult struct{}

// LastInsertId implements driver.Result.
func (LateResult) LastInsertId() (int64, error) { return 0, ErrLate }

// RowsAffected implements driver.Result.
func (LateResult) RowsAffected() (int64, error) { return 0, ErrLate }

type lateKey struct{}

// SendLate returns a context for a statement without arguments whose result is not needed. The
// driver may send it later in the transaction.
func SendLate(ctx context.Context, l *Late) context.Context {
	return context.WithValue(ctx, lateKey{}, l)
}

// LateOf returns the Late in ctx, or nil.
func LateOf(ctx context.Context) *Late {
	l, _ := ctx.Value(lateKey{}).(*Late)
	return l
}
