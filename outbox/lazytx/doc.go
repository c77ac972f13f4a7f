// Package lazytx saves round trips to PostgreSQL with lib/pq and pgx. It sends the events of
// package outbox together with COMMIT, and the BEGIN of a consumer's transaction together with the
// first statement.
//
//	connector, err := pq.NewConnector(dsn) // or stdlib.GetConnector(*config)
//	...
//	db := sql.OpenDB(lazytx.Connector(connector))
//
// The other packages need no configuration. An event costs no round trip, in
// [github.com/watermill-once/once/outbox.InTx], in another transaction on this pool, or returned by
// a handler. With lib/pq, a message whose handler executes one statement takes four round trips
// instead of five.
//
// # Events
//
// Events are not in the outbox before the commit. They are sent before a statement that could
// notice this: one about savepoints, roles, settings or constraints, or with the name of an outbox
// table, but not one with a function or a view that reads the outbox. If PostgreSQL refuses an
// event, the commit fails.
//
// Events are sent immediately if the transaction is read-only or uses savepoints, if there are more
// than 1 MiB, and with lib/pq if the context of [database/sql.DB.BeginTx] can end, because lib/pq
// watches it. Those of outbox.InTx and of a consumer's transaction are not watched.
//
// # BEGIN
//
// In a transaction of your service, and in outbox.InTx, BEGIN is sent immediately,
// because the first statement does not come from this module.
//
// # Limits
//
// If a trigger or a rule makes PostgreSQL ignore the insert of an event without an error, lazytx does
// not notice this. Without lazytx, Publish then fails.
//
// [database/sql.Conn.Raw] returns a connection of this package, with the methods of driver.Conn.
// Functions that require one of lib/pq or pgx, such as pq.SetNoticeHandler, need a
// [database/sql.DB] without lazytx.
package lazytx
