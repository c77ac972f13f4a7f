// Package lazytx saves this module's transactions a round trip to PostgreSQL:
// BEGIN goes to the server together with the transaction's first statement, as
// other languages' drivers send it.
//
//	connector, err := pq.NewConnector(dsn)
//	...
//	db := sql.OpenDB(lazytx.Connector(connector))
//
// Of the five round trips that a message with one statement of its handler takes
// through lib/pq, four are left. Nothing has to be told to the other packages,
// and nothing changes for transactions that the service begins itself, nor for
// [github.com/watermill-once/once/outbox.InTx]: their first statement is not this
// module's, and their BEGIN goes out at once.
//
// It is for lib/pq alone. What [database/sql.Conn.Raw] shows is a connection of
// this package then, which driver.Conn methods of lib/pq work with, but not the
// functions of lib/pq that want its own, such as SetNoticeHandler: let these use
// a [database/sql.DB] without it.
package lazytx
