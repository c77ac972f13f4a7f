package dialect

import (
	"errors"
	"strings"
)

// This package imports no driver, so it recognizes the errors of drivers by their
// methods. Errors of lib/pq and pgx have the method SQLState. Errors of modernc's
// SQLite have the method Code.
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

// State returns the SQLSTATE of a PostgreSQL error, or "" for other errors.
func State(err error) string {
	var pg sqlStater
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	return ""
}

// Contended reports whether the work failed because of other transactions: a lock
// timeout, a deadlock, a serialization failure, or SQLite busy. The same work may
// succeed a moment later.
func Contended(err error) bool {
	switch State(err) {
	case "55P03", // lock_not_available
		"40P01", // deadlock_detected
		"40001": // serialization_failure
		return true
	}
	code := sqliteCode(err)
	return code == sqliteBusy || code == sqliteLocked
}

// Unavailable reports whether the database cannot be reached, or cannot do any work
// now: connection failures, shutdown, too many connections, read-only after a failover,
// or no space. It returns false for errors that do not come from the database, such as
// a reset connection or a failed dial, because these may be errors of the caller's own
// connections.
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

// Undeployed reports whether PostgreSQL lacks a table or column, or the role lacks the
// right to use it. A statement of this module is the same for every message, so such an
// error means that the database is not set up correctly.
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

// Unstorable reports whether err means that a string cannot be converted to the
// encoding of the database or of the connection. This happens only with encodings other
// than UTF-8, which schema.Check refuses.
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

// TooMuch reports whether the work needs more memory or locks than the server has. A
// smaller part of the work may succeed.
func TooMuch(err error) bool { return State(err) == "53200" } // out_of_memory

// Refused reports whether the database has refused this work. It returns false if the
// database is unavailable, or if the work failed because of other transactions.
func Refused(err error) bool { return refused(err) && !Unavailable(err) && !Contended(err) }

// replicaError is the error of a BEGIN on a server that has become a replica. The
// server's address may lead to the new primary now, but an existing connection still
// leads to the replica, so the connection is closed. lib/pq sends BEGIN with READ
// WRITE. A replica refuses this with feature_not_supported, and refuses other writes
// with read_only_sql_transaction. A replicaError always has the SQLSTATE of the latter,
// so that callers need to know only one.
type replicaError struct{ error }

// ErrReplica means that the server of a connection has become a replica. It has the
// same SQLSTATE as the error of a write on a replica.
var ErrReplica error = replicaError{errors.New("the server is a replica, which accepts no writes")}

func isReplica(err error) bool { return State(err) == "0A000" && !Unstorable(err) }

// BeginError returns err, which is the error of a BEGIN. If the server is a replica,
// the returned error has the same SQLSTATE as the error of a write on a replica.
func BeginError(err error) error {
	if isReplica(err) {
		return replicaError{err}
	}
	return err
}

func (e replicaError) Unwrap() error    { return e.error }
func (e replicaError) SQLState() string { return "25006" }

// refused reports whether err comes from the database itself. If a commit returns such
// an error, the commit did not happen.
func refused(err error) bool {
	state := State(err)
	if state != "" {
		// The server ends a session with these errors even if its commit is on disk
		// already.
		return !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "08")
	}
	return sqliteCode(err) != 0
}

// CommitRefused reports whether err, the error of a commit, comes from the database
// itself. If it returns true, the commit did not happen.
func CommitRefused(err error) bool { return refused(err) }

func sqliteCode(err error) int {
	var lite coder
	if errors.As(err, &lite) {
		return lite.Code() & 0xff
	}
	return 0
}
