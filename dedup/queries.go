package dedup

import (
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

type queries struct {
	timeouts string // none for SQLite
	insert   string
	same     string
}

func newQueries(d dialect.Dialect, c Config) queries {
	q := queries{
		insert: d.SQL(`
			INSERT INTO {inbox} (message_id, consumer, digest, tenant) VALUES ($1, $2, $3, $4)
			ON CONFLICT (message_id, consumer) DO NOTHING`),

		same: d.SQL(`
			SELECT digest = $3 FROM {inbox} WHERE message_id = $1 AND consumer = $2`),
	}
	if !d.SQLite() {
		// No arguments, so that it is one round trip.
		q.timeouts = fmt.Sprintf(`SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
			c.LockTimeout.Milliseconds(), c.IdleTimeout.Milliseconds())
	}
	return q
}
