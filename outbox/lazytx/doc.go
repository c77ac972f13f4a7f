// Package lazytx saves round trips to PostgreSQL. It sends the events of package outbox
// together with COMMIT. It sends the BEGIN of a consumer's transaction together with
// the first statement. It works with lib/pq and with pgx.
//
//	connector, err := pq.NewConnector(dsn) // or stdlib.GetConnector(*config)
//	...
//	db := sql.OpenDB(lazytx.Connector(connector))
//
// The other packages need no configuration. An event costs no round trip if it is
// published in [github.com/watermill-once/once/outbox.InTx] or in another transaction
// on this pool, or if a handler returns it. With lib/pq, a message whose handler
// executes one statement takes four round trips instead of five.
//
// # Events
//
// The events of a transaction are sent in one query string with COMMIT, so they are not
// in the outbox before the commit. If a statement could notice this, lazytx sends the
// events before the statement. Such a statement is about savepoints, roles, settings or
// constraints, or contains the name of an outbox table. lazytx does not notice a
// function or a view that reads the outbox. If PostgreSQL refuses an event, the commit
// fails.
//
// lazytx sends events immediately if the transaction is read-only or uses savepoints,
// and if there are more than 1 MiB of events. With lib/pq, it also sends them
// immediately if the context of [database/sql.DB.BeginTx] can end, because lib/pq
// watches this context. The context of outbox.InTx and of a consumer's transaction is
// not watched.
//
// # BEGIN
//
// In a transaction of your service, and in outbox.InTx, BEGIN is sent immediately,
// because the first statement does not come from this module.
//
// # Limits
//
// [database/sql.Conn.Raw] returns a connection of this package. Methods of driver.Conn
// work on it. Functions that require a connection of lib/pq or pgx, such as
// pq.SetNoticeHandler, do not work: use them with a [database/sql.DB] without lazytx.
package lazytx
