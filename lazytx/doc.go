// Package lazytx saves the transactions of this module one round trip to
// PostgreSQL: it sends BEGIN together with the first statement, as drivers of other
// languages do.
//
//	connector, err := pq.NewConnector(dsn)
//	...
//	db := sql.OpenDB(lazytx.Connector(connector))
//
// With lib/pq a message whose handler executes one statement takes five round trips;
// with lazytx it takes four. The other packages need no configuration. Nothing
// changes for transactions that your service begins itself, nor for
// [github.com/watermill-once/once/outbox.InTx]: their first statement is not a
// statement of this module, so their BEGIN is sent at once.
//
// The package supports lib/pq only. [database/sql.Conn.Raw] then returns a
// connection of this package. Methods of driver.Conn work on it, but functions that
// require a connection of lib/pq, such as pq.SetNoticeHandler, do not: use them with
// a [database/sql.DB] without lazytx.
//
// To read the code, start with connector.go, then conn.go.
package lazytx
