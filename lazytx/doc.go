// Package lazytx saves round trips to PostgreSQL. It sends the events of package outbox
// together with COMMIT, and the BEGIN of a consumer's transaction together with the
// first statement. It works with lib/pq and with pgx.
//
//	connector, err := pq.NewConnector(dsn) // or stdlib.GetConnector(*config)
//	...
//	db := sql.OpenDB(lazytx.Connector(connector))
//
// The other packages need no configuration. An event of
// [github.com/watermill-once/once/outbox.InTx], of another
// transaction on this pool, or returned by a handler costs no round trip. With lib/pq a
// message whose handler executes one statement takes four round trips instead of five.
//
// # Events
//
// The events of a transaction are sent as one text with COMMIT, so they are not in the
// outbox before. A statement that could notice this makes lazytx send them first: a
// statement about savepoints, roles, settings or constraints, or one that contains the
// name of an outbox table. A function or a view that reads the outbox is not noticed.
// If PostgreSQL refuses an event, the commit fails.
//
// Events are sent at once in a transaction that is read-only or uses savepoints, if
// there are more than 1 MiB of them, and with lib/pq if the context of
// [database/sql.DB.BeginTx] can end, which lib/pq watches. The context of outbox.InTx
// and of a consumer's transaction is not watched.
//
// # BEGIN
//
// The BEGIN of a transaction of your service, and of outbox.InTx, is sent at once,
// because its first statement is not one of this module.
//
// # Limits
//
// [database/sql.Conn.Raw] returns a connection of this package. Methods of driver.Conn
// work on it, but functions that require a connection of lib/pq or pgx, such as
// pq.SetNoticeHandler, do not: use them with a [database/sql.DB] without lazytx.
//
// To read the code, start with connector.go and driver.go, then conn.go and tx.go
// (BEGIN and COMMIT), late.go and scope.go (events).
package lazytx
