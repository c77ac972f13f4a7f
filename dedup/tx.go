package dedup

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/parked"
)

// TxFromContext returns the transaction of the message that is being handled;
// ctx is the message's context. What is written through it takes effect
// together with the message's entry in the inbox, or not at all. It must be
// neither committed nor rolled back by the handler, nor used after it.
//
// What a handler writes through any other connection, such as a *sql.DB of its
// package, is not part of it: it stays when the attempt fails, and is done again
// by the next one. oncetest.Run finds that.
//
// It is false outside of [Inbox.Middleware].
func TxFromContext(ctx context.Context) (*sql.Tx, bool) { return parked.TxOf(ctx) }
