package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/watermill-once/once/schema"
)

// This package imports no driver, so it recognizes errors by their methods: SQLState of lib/pq and
// pgx, Code of modernc's SQLite.
type (
	sqlStater interface{ SQLState() string }
	coder     interface{ Code() int }
)

// SQLite's primary result codes, https://www.sqlite.org/rescode.html.
const (
	sqliteBusy   = 5
	sqliteLocked = 6
	sqliteFull   = 13
)

// MySQL's error numbers, https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html.
const (
	mysqlLockTimeout = 1205
	mysqlDeadlock    = 1213
)

// State returns the SQLSTATE of a PostgreSQL error, or "", also if a method of err panics, because
// err may be an error of the user.
func State(err error) (state string) {
	defer func() { _ = recover() }()
	var pg sqlStater
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	return ""
}

// Contended reports whether other transactions are the cause: a lock timeout, a deadlock, a
// serialization failure, or SQLite busy. The same work may succeed a moment later.
func Contended(err error) bool { return Conflicted(err) || State(err) == "55P03" } // lock_not_available

// Conflicted is like [Contended], without PostgreSQL's lock timeout, because a handler can wait for
// a lock that it holds itself through another connection. It also knows the errors of MySQL, which
// a handler may use beside this module's database.
func Conflicted(err error) bool {
	switch State(err) {
	case "40P01", // deadlock_detected
		"40001": // serialization_failure
		return true
	}
	code := sqliteCode(err)
	return code == sqliteBusy || code == sqliteLocked || contendedMySQL(err)
}

// The number of MySQL's errors is in a field and not in a method.
func contendedMySQL(err error) bool {
	if value := reflect.Indirect(reflect.ValueOf(err)); value.Kind() == reflect.Struct && value.Type().Name() == "MySQLError" {
		if number := value.FieldByName("Number"); number.CanUint() {
			return number.Uint() == mysqlLockTimeout || number.Uint() == mysqlDeadlock
		}
	}
	switch wrapper := err.(type) { //nolint:errorlint // this is the loop over the chain
	case interface{ Unwrap() error }:
		return contendedMySQL(wrapper.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(wrapper.Unwrap(), contendedMySQL)
	}
	return false
}

// Unavailable reports whether the database cannot be reached, or cannot do any work now: connection
// failures, shutdown, too many connections, read-only after a failover, or no space. Errors that do
// not come from the database, such as a failed dial, may be of the caller's own connections, and do
// not count.
func Unavailable(err error) bool {
	state := State(err)
	if state == "" {
		return sqliteCode(err) == sqliteFull
	}
	switch state[:min(2, len(state))] {
	case "08", // connection_exception
		"53", // insufficient resources
		"57", // operator intervention
		"58": // system error
		return state != "57014" // query_canceled: a statement timeout concerns only this work
	}
	return state == "25006" || // read_only_sql_transaction
		strings.HasPrefix(state, "XX")
}

type (
	refuser      interface{ Refused() bool }
	unavailabler interface{ Unavailable() bool }
)

// MayPass reports whether err means that a database or a broker is unreachable, or cannot work now,
// so that a later attempt may succeed. For a wrong password, an unknown database and all unknown
// errors, it returns false.
func MayPass(err error) bool {
	if err == nil {
		return false
	}
	var (
		refused     refuser
		unavailable unavailabler
		network     net.Error
	)
	if errors.As(err, &refused) && refused.Refused() {
		return false
	}
	if State(err) != "" { // an error with a SQLSTATE is an answer of the server
		return Unavailable(err) || Contended(err)
	}
	for _, passing := range []error{
		context.DeadlineExceeded, context.Canceled, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return Contended(err) || // SQLite busy
		errors.As(err, &unavailable) && unavailable.Unavailable() || errors.As(err, &network)
}

// Undeployed reports whether PostgreSQL lacks a table or column, or the role the right to use it.
// Statements are the same for every message, so the database is not set up correctly.
func Undeployed(err error) bool {
	switch State(err) {
	case "42501", // insufficient_privilege
		"42P01", // undefined_table
		"42703", // undefined_column
		"3F000": // invalid_schema_name
		return true
	}
	return false
}

func denied(err error) bool { return State(err) == "42501" } // insufficient_privilege

// Denied adds a remedy to err if the role of the session lacks a right: a function of the user may
// have changed it, in this transaction or an earlier one of the connection.
func Denied(err error) error {
	if !denied(err) {
		return err
	}
	return fmt.Errorf("%w (if a function of yours runs SET ROLE, it must use SET LOCAL ROLE, "+
		"and RESET ROLE before it publishes or returns)", err)
}

// Unstorable reports whether a string cannot be converted to the encoding of the database or the
// connection. schema.Check refuses encodings other than UTF-8.
func Unstorable(err error) bool {
	switch State(err) {
	case "22P05", // untranslatable_character
		"22021": // character_not_in_repertoire
		return true
	case "0A000": // feature_not_supported: SQL_ASCII does not support Unicode escapes
		return strings.Contains(err.Error(), "SQL_ASCII")
	}
	return false
}

// TooMuch reports whether the work needs more memory or locks than there are. A smaller part may succeed.
func TooMuch(err error) bool { return State(err) == "53200" } // out_of_memory

// Refused reports whether the database has refused this work, and not because it is unavailable, or
// because of other transactions.
func Refused(err error) bool { return refused(err) && !Unavailable(err) && !Contended(err) }

// replicaError is the error of a BEGIN on a server that has become a replica. Its address may lead
// to the new primary now, so the connection is closed. lib/pq sends BEGIN with READ WRITE, which a
// replica refuses with feature_not_supported, and other writes with read_only_sql_transaction. A
// replicaError always has the latter SQLSTATE.
type replicaError struct{ error }

// ErrReadOnly has the SQLSTATE of a write on a read-only server.
var ErrReadOnly error = replicaError{errors.New("the server is read-only: it is a replica, or default_transaction_read_only is on")}

func isReplica(err error) bool { return State(err) == "0A000" && !Unstorable(err) }

// isReadOnly reports whether err is that of a write on a server that has become a replica.
func isReadOnly(err error) bool { return State(err) == "25006" }

// BeginError gives the error of a BEGIN on a replica the SQLSTATE of a write there.
func BeginError(err error) error {
	if isReplica(err) {
		return replicaError{err}
	}
	return err
}

func (e replicaError) Unwrap() error    { return e.error }
func (e replicaError) SQLState() string { return "25006" }

// refused reports whether err comes from the database itself: then a commit did not happen.
func refused(err error) bool {
	state := State(err)
	if state != "" {
		// These errors end a session even if its commit is on disk already.
		return !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "08")
	}
	return sqliteCode(err) != 0
}

// CommitRefused reports whether the commit that failed with err certainly did not happen.
func CommitRefused(err error) bool { return refused(err) }

func sqliteCode(err error) (code int) {
	defer func() { _ = recover() }() // see State
	var lite coder
	if errors.As(err, &lite) {
		return lite.Code() & 0xff
	}
	return 0
}

// mysqlText matches errors of MySQL and MariaDB, which no method identifies.
var mysqlText = regexp.MustCompile(`\bError \d+ \([0-9A-Z]{5}\): `)

// kindError also wraps the error of the database, because callers examine it.
type kindError struct{ kind, cause error }

func (e kindError) Error() string   { return e.kind.Error() }
func (e kindError) Unwrap() []error { return []error{e.kind, e.cause} }

// Explain returns schema.ErrDialect in place of err if the database is of another kind than d's:
// then err only says that it does not understand the SQL. It also explains a sequence that is
// behind its table. db is a *sql.DB or a *sql.Tx.
func (d Dialect) Explain(ctx context.Context, db querier, err error) error {
	if err == nil || !d.foreign(err) {
		return d.ExplainNumber(err)
	}
	if kind := schema.Check(ctx, db, d.config); errors.Is(kind, schema.ErrDialect) {
		return kindError{kind, err}
	}
	return err
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (d Dialect) foreign(err error) bool {
	if d.SQLite() && State(err) != "" || !d.SQLite() && sqliteCode(err) != 0 {
		return true
	}
	return mysqlText.MatchString(err.Error())
}

// ErrUnchanged means that a statement has not changed rows that it must, without an error.
var ErrUnchanged = errors.New("the database did not change rows and reported no error")

// Unchanged returns an [ErrUnchanged] for a table without prefix. did says what did not happen.
func (d Dialect) Unchanged(table, did string) error { return Ignored(d.config.Table(table), did) }

// Ignored is like Unchanged, for a table with any name.
func Ignored(table, did string) error {
	return fmt.Errorf("%w: %s in table %s: look for a trigger (BEFORE ... RETURN NULL), a rule (DO INSTEAD) or a policy "+
		"of row level security on it, and remove it", ErrUnchanged, did, table)
}
