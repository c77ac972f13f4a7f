package dedup

import (
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

type queries struct {
	timeouts string // none for SQLite
	insert   string
	same     string

	sweepInbox  string
	sweepParked string
}

func newQueries(d dialect.Dialect, c Config) queries {
	q := queries{
		insert: d.SQL(`
			INSERT INTO {inbox} (message_id, consumer, digest, tenant) VALUES ($1, $2, $3, $4)
			ON CONFLICT (message_id, consumer) DO NOTHING`),

		same: d.SQL(`
			SELECT digest = $3 FROM {inbox} WHERE message_id = $1 AND consumer = $2`),

		// A message that is parked may run again, however long it lies there.
		sweepInbox: d.SQL(`
			DELETE FROM {inbox} WHERE (message_id, consumer) IN (
				SELECT message_id, consumer FROM {inbox} AS i
				WHERE processed_at < {after $1} AND NOT EXISTS (
					SELECT 1 FROM {parked} AS p
					WHERE p.consumer = i.consumer AND p.message_id = i.message_id AND p.message_id <> ''
					  AND p.state NOT IN ` + parked.Final + `)
				LIMIT $2
				{skip_locked})`),

		sweepParked: d.SQL(`
			DELETE FROM {parked} WHERE id IN (
				SELECT id FROM {parked} WHERE state IN ` + parked.Final + ` AND finished_at < {after $1}
				LIMIT $2
				{skip_locked})`),
	}
	if !d.SQLite() {
		// No arguments, so that it is one round trip.
		q.timeouts = fmt.Sprintf(`SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
			c.LockTimeout.Milliseconds(), c.IdleTimeout.Milliseconds())
	}
	return q
}
