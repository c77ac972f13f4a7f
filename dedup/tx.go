package dedup

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/parked"
)

// TxFromContext returns the transaction of the message whose context is ctx. Outside of
// the inbox's middlewares it returns false. Writes through the transaction take effect
// together with the message's row in the inbox, or not at all. A handler must not
// commit or roll back the transaction, and must not use the transaction after the
// handler has returned.
//
// Writes through any other connection, such as a global *sql.DB, are not part of the
// transaction. If the attempt fails, these writes remain, and the next attempt repeats
// them. oncetest.Run detects this.
func TxFromContext(ctx context.Context) (*sql.Tx, bool) { return parked.TxOf(ctx) }
