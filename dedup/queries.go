package dedup

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

type queries struct {
	begin  string // of a transaction that claims nothing
	insert dialect.Statement
	same   dialect.Statement

	// check fails if the handler has ended the transaction. What one sends as a
	// statement nobody else sees: what it writes then would be committed without
	// a row in the inbox.
	check string

	// The same for several messages.
	beforeClaim func(lock time.Duration) string
	claim       func(rows int) string
	afterClaim  string // none for SQLite
	digests     string

	sweepInbox      string
	sweepInboxFrom  string // where a batch before it has come to
	sweepParked     string
	sweepParkedFrom string

	keys keyQueries

	// Of an inbox that is laid out by day.
	sweepRows func(table string) string
	days      dayQueries
}

func newQueries(d dialect.Dialect, c Config) queries {
	idle := fmt.Sprintf(`SET LOCAL idle_in_transaction_session_timeout = %d`, c.IdleTimeout.Milliseconds())
	q := queries{
		begin: `SELECT ` + keepLockTimeout + `; ` + idle,

		// Every message pays for this one: the timeouts go with it. That of locks is
		// for this statement alone. It is set by an expression, before the row is
		// inserted, and set back after it was; if it was not, no handler follows.
		insert: d.Statement(idle, `
			INSERT INTO {inbox} (message_id, consumer, digest, tenant)
			VALUES ($1, $2, $3, CASE
				WHEN set_config('lock_timeout', left(`+keepLockTimeout+`, 0) || '`+millis(c.LockTimeout)+`', true) <> '' THEN $4 END)
			ON CONFLICT (message_id, consumer) DO NOTHING
			RETURNING `+lockTimeoutBack),

		// One that says who has done so: no parameter has this name.
		check: `SELECT current_setting('once.' || CASE WHEN current_setting('once.lock_timeout', true) <> '' ` +
			`THEN 'lock_timeout' ELSE '` + endedParameter + `' END)`,

		// Not part of it: together they cost more than both.
		same: d.Statement("", `
			SELECT digest = $3 FROM {inbox} WHERE message_id = $1 AND consumer = $2`),

		beforeClaim: func(lock time.Duration) string {
			return `SELECT ` + keepLockTimeout + `; SET LOCAL lock_timeout = ` + millis(lock) + `; ` + idle
		},
		claim:      newClaim(d),
		afterClaim: `SELECT ` + lockTimeoutBack,

		digests: d.SQL(`
			SELECT message_id, digest FROM {inbox} WHERE consumer = $1 AND message_id IN {list $2 text}`),

		sweepParked:     sweepParked(d, ``),
		sweepParkedFrom: sweepParked(d, `AND finished_at >= {from_millis $3}`),

		keys: newKeyQueries(d),
	}
	if d.SQLite() {
		q.begin, q.check = `SAVEPOINT `+savepoint, `RELEASE `+savepoint
		q.insert = d.Statement("", `
			INSERT INTO {inbox} (message_id, consumer, digest, tenant) VALUES ($1, $2, $3, $4)
			ON CONFLICT (message_id, consumer) DO NOTHING`)
		q.beforeClaim, q.afterClaim = func(time.Duration) string { return q.begin }, ""
	}
	table := "inbox"
	if c.Schema.Inbox == schema.ByDay {
		table = "inbox_default" // where keys are, too
		q.sweepRows = newSweepRows(d, ``, ``)
		q.days = newDayQueries(d)
	}
	const returning = `RETURNING {millis processed_at}`
	q.sweepInbox = newSweepRows(d, keysStay, returning)(c.Schema.Table(table))
	q.sweepInboxFrom = newSweepRows(d, keysStay+` AND processed_at >= {from_millis $5}`, returning)(c.Schema.Table(table))
	return q
}

// newSweepRows returns how a batch of the inbox, or of a part of it, is removed.
// A message that is parked may run again, however long it lies there. In order,
// or a sweep that finds little may read the whole table.
func newSweepRows(d dialect.Dialect, besides, returning string) func(table string) string {
	query := d.SQL(`
			DELETE FROM %[1]s WHERE (message_id, consumer) IN (
				SELECT message_id, consumer FROM %[1]s AS i
				WHERE processed_at < {after $1} AND NOT EXISTS (
					SELECT 1 FROM {parked} AS p
					WHERE p.consumer = i.consumer AND p.message_id = i.message_id AND p.message_id <> ''
					  AND p.state NOT IN ` + parked.Final + `) ` + besides + `
				ORDER BY processed_at LIMIT $2
				{skip_locked}) ` + returning)
	return func(table string) string { return fmt.Sprintf(query, table) }
}

// keysStay is the condition for the keys among the rows, see [Inbox.learnKeys].
// A message that is over keeps its key for as long as its row stays: an edited
// one in its place may have the same. Not NOT EXISTS: PostgreSQL could read all
// parked messages for it.
const keysStay = `
					AND (substr(i.message_id, 1, 4) <> '` + keyPrefix + `'
					     OR processed_at < {from_millis $3} AND i.consumer NOT IN {list $4 text}
					        AND (SELECT 1 FROM {parked} AS p
					             WHERE p.dedup_key = i.message_id AND p.consumer = i.consumer AND p.dedup_key <> ''
					             LIMIT 1) IS NULL)`

// sweepParked returns how a batch of the parked messages is removed. What became
// of the entries of a replay is counted in them until it has finished.
func sweepParked(d dialect.Dialect, from string) string {
	return parked.DeleteRows(d, `
				SELECT id FROM {parked} WHERE state IN `+parked.Final+` AND finished_at < {after $1} `+from+`
				  AND (replay_id IS NULL OR replay_id NOT IN (SELECT id FROM {replays} WHERE state <> 'finished'))
				ORDER BY finished_at LIMIT $2`, `RETURNING {millis finished_at}`)
}

// setTimeouts has no arguments, so that it is one round trip, and is empty for
// SQLite.
func setTimeouts(d dialect.Dialect, lock, idle time.Duration) string {
	if d.SQLite() {
		return ""
	}
	return fmt.Sprintf(`SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
		lock.Milliseconds(), idle.Milliseconds())
}

// The handler's statements wait for locks for as long as its session says. That
// is kept in a parameter of the transaction, which is empty outside of it.
const (
	keepLockTimeout = `set_config('once.lock_timeout', current_setting('lock_timeout'), true)`
	lockTimeoutBack = `set_config('lock_timeout', current_setting('once.lock_timeout'), true)`
)

// What the error of a check says: which parameter, or which savepoint, is not
// there.
const (
	endedParameter = `transaction_was_ended_by_the_handler`
	savepoint      = `once_message`
)

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// batchLockTimeout is how long a batch waits for copies that are handled
// elsewhere, before its messages go on alone: then only those wait longer.
const batchLockTimeout = time.Second

// claimParams are the parameters of a row. The consumer is the first one and
// the same for all.
const claimParams = 3

func newClaim(d dialect.Dialect) func(rows int) string {
	head := d.SQL(`INSERT INTO {inbox} (consumer, message_id, digest, tenant) VALUES `)
	tail := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING message_id`)
	one := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING left(` + lockTimeoutBack + `, 0) || message_id`)
	mark := "$"
	if d.SQLite() {
		mark, one = "?", tail
	}
	return func(rows int) string {
		var b strings.Builder
		b.WriteString(head)
		for n := range rows {
			if n > 0 {
				b.WriteByte(',')
			}
			b.WriteString("(" + mark + "1")
			for column := range claimParams {
				b.WriteString("," + mark + strconv.Itoa(2+claimParams*n+column))
			}
			b.WriteByte(')')
		}
		if rows == 1 {
			b.WriteString(one)
		} else {
			b.WriteString(tail)
		}
		return b.String()
	}
}
