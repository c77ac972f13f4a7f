package sequence

import "github.com/watermill-once/once/internal/dialect"

// queries contains the statements of a Resequencer. Each statement takes a single round
// trip, because every message needs most of them.
type queries struct {
	last   dialect.Statement
	begin  dialect.Statement
	next   dialect.Statement
	extend dialect.Statement
	wake   dialect.Statement
	lowest dialect.Statement
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		// The lock on the row makes other messages of the aggregate wait until the
		// transaction of this message has ended.
		last: d.Statement("", `
			SELECT version, complete_from FROM {versions}
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3
			{for_update}`),

		begin: d.Statement("", `
			INSERT INTO {versions} (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ($1, $2, $3, $4, $5, {now})
			ON CONFLICT (consumer, aggregate_type, aggregate_id) DO NOTHING`),

		next: d.Statement("", `
			UPDATE {versions} SET version = $4, complete_from = $5, applied_at = {now}
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3 AND version < $4`),

		// version stays the same, because the applied version is lower.
		extend: d.Statement("", `
			UPDATE {versions} SET complete_from = $4
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3`),

		// Claimed rows are left out, because their due time is the end of their lease.
		wake: d.Statement("", `
			UPDATE {parked} SET due_at = {now}
			WHERE consumer = $1 AND early_of = $2 AND early_version = $3
			  AND early_of IS NOT NULL AND state = 'waiting' AND token IS NULL`),

		lowest: d.Statement("", `
			SELECT NOT EXISTS (SELECT 1 FROM {parked}
			                   WHERE consumer = $1 AND early_of = $2 AND early_version > $3 AND early_version < $4
			                     AND early_of IS NOT NULL AND state = 'waiting')`),
	}
}
