package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// LeaveReplica throws a connection away if err says that it leads to a server
// which has become a replica: the address may lead to the new primary by now,
// but an established connection stays where it is and fails for ever. It
// returns err.
func LeaveReplica(ctx context.Context, db *sql.DB, err error) error {
	const readOnly = "25006"
	if State(err) != readOnly {
		return err
	}
	conn, failed := db.Conn(ctx) // the pool gives the one that was used last
	if failed != nil {
		return err
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
	return err
}
