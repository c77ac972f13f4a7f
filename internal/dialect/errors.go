package dialect

import (
	"errors"
	"strings"
)

// Drivers are not imported; what their errors mean is asked by behaviour.
// lib/pq and pgx both answer SQLState, modernc's SQLite answers Code.
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

// State returns the SQLSTATE of a PostgreSQL error, or "".
func State(err error) string {
	var pg sqlStater
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	return ""
}

// Contended says that the database gave way to other work: a lock timeout, a
// deadlock, a serialization failure, SQLite busy. The same work may succeed a
// moment later; nothing is wrong with it.
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

// Unavailable says that the database could not be reached or cannot work now,
// as opposed to having refused this work: connection failures, shutdown, too
// many connections, read only after a failover, no space. An error that is not
// the database's own (a reset connection, a failed dial) is not recognised
// here, because it cannot be told from one of the caller's.
func Unavailable(err error) bool {
	state := State(err)
	if state == "" {
		return sqliteCode(err) == sqliteFull
	}
	switch state[:min(2, len(state))] {
	case "08", // connection exception
		"53", // insufficient resources
		"57", // operator intervention
		"58": // system error
		return state != "57014" // query_canceled: a statement timeout is about the work
	}
	return state == "25006" || // read_only_sql_transaction
		strings.HasPrefix(state, "XX")
}

// Undeployed says that PostgreSQL has no such table or column, or not for this
// role. Of a statement of ours, which says the same of every message, that is
// about the deployment.
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

// Unstorable says that a text cannot be stored in the encoding of the database,
// or not be told to it: it is not in UTF-8, which schema.Check refuses.
func Unstorable(err error) bool {
	switch State(err) {
	case "22P05", // untranslatable_character
		"22021": // character_not_in_repertoire
		return true
	case "0A000": // feature_not_supported: SQL_ASCII knows no letter by its number
		return strings.Contains(err.Error(), "SQL_ASCII")
	}
	return false
}

// TooMuch says that the work takes more memory than there is, or more locks:
// less of it at once may succeed.
func TooMuch(err error) bool { return State(err) == "53200" } // out_of_memory

// Refused says that the database answered, and would not do this work: it was
// neither away nor busy with other work.
func Refused(err error) bool { return refused(err) && !Unavailable(err) && !Contended(err) }

// replicaError says that the server has become a replica. The address may lead
// to the new primary by now, but an established connection stays where it is,
// so it is thrown away. lib/pq begins with READ WRITE, which a replica refuses
// with a state of its own (feature_not_supported).
type replicaError struct{ error }

func isReplica(err error) bool { return State(err) == "0A000" && !Unstorable(err) }

// BeginError returns the error of a BEGIN with the state that every statement
// which writes would have got, if that is what it is about.
func BeginError(err error) error {
	if isReplica(err) {
		return replicaError{err}
	}
	return err
}

func (e replicaError) Unwrap() error    { return e.error }
func (e replicaError) SQLState() string { return "25006" }

// refused says that the database answered with an error of its own, so that a
// commit it was asked for did not happen.
func refused(err error) bool {
	state := State(err)
	if state != "" {
		// The server ends the session with these while a commit may already
		// be on disk.
		return !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "08")
	}
	return sqliteCode(err) != 0
}

func sqliteCode(err error) int {
	var lite coder
	if errors.As(err, &lite) {
		return lite.Code() & 0xff
	}
	return 0
}
