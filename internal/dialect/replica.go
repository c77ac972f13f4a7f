package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// LeaveReplica closes the connection that was used last, if err means that its server
// has become a replica. The server's address may lead to the new primary now, but every
// write on the existing connection would fail. LeaveReplica returns err.
func LeaveReplica(ctx context.Context, db *sql.DB, err error) error {
	const readOnly = "25006"
	if State(err) != readOnly {
		return err
	}
	conn, failed := db.Conn(ctx) // the pool returns the most recently used connection
	if failed != nil {
		return err
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
	return err
}
