// Package pgxoutbox stores messages in the outbox through pgx, without database/sql. The package is
// a separate module, so that users of other drivers do not need pgx.
//
// Usually you call InTx. It sends the events of a transaction together with COMMIT, and BEGIN
// together with the first statement. So an event costs no round trip, and the transaction takes one
// round trip less:
//
//	err := pgxoutbox.InTx(ctx, pool, func(tx pgx.Tx, events message.Publisher) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
//			return err
//		}
//		return events.Publish("orders.placed", outbox.NewMessage(payload))
//	})
//
// If you already have a transaction, call Publisher with it. The forwarder, the consumer and the
// calls for operators use database/sql: open a *sql.DB on the same pool with stdlib.OpenDBFromPool.
package pgxoutbox
