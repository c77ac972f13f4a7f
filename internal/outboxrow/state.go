package outboxrow

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
)

// WaitingSince are columns for the lag of the outbox, in milliseconds or NULL, each found by an
// index: when the first message without a due time was stored, the earliest due time, and the
// earliest failure of a message that is refused or unconfirmed.
const WaitingSince = `
	(SELECT {millis created_at} FROM {outbox} WHERE due_at IS NULL ORDER BY position LIMIT 1),
	(SELECT {millis due_at} FROM {outbox} WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1),
	(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1)`

// WindowRows is how many rows one query of a search examines. The outbox has no index on message
// ids, which would slow down the business transactions.
const WindowRows = 20_000

// Window returns the position of the last of the next WindowRows rows, or 0 if fewer follow.
func Window(ctx context.Context, tx *sql.Tx, d dialect.Dialect, after int64) (last int64, err error) {
	n := 0
	err = tx.QueryRowContext(ctx, d.SQL(`SELECT COUNT(*), COALESCE(MAX(w.position), 0) FROM (
		SELECT position FROM {outbox} WHERE position > $1 ORDER BY position LIMIT $2) AS w`), after, WindowRows).Scan(&n, &last)
	if n < WindowRows {
		last = 0
	}
	return last, err
}

// State is an SQL expression for the state of row o of the outbox.
const State = `CASE WHEN o.ordering_key IS NOT NULL AND EXISTS (SELECT 1 FROM {blocked_keys})
	      AND EXISTS (SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position) THEN 'blocked'
	 WHEN o.due_at > {now} AND o.failing_since IS NOT NULL THEN 'backing_off'
	 WHEN o.due_at > {now} THEN 'delayed'
	 ELSE 'due' END`

const (
	PausedTopic  = "topic"
	PausedTenant = "tenant"
)

// Tenant returns an SQL expression for the tenant of row o, shortened like a [Label], or "".
func Tenant(d dialect.Dialect) string {
	field := `COALESCE(substr(` + MetadataField(d, meta.TenantID) + `, 1, 255), '')`
	if d.SQLite() {
		return field
	}
	// Most rows without a tenant need no decoding.
	return `CASE WHEN strpos(CAST(o.metadata AS text), '"` + meta.TenantID + `"') > 0 THEN ` + field + ` ELSE '' END`
}

// Paused is whether the topic of row o is in topics, or its tenant in tenants, SQL lists in parentheses.
func Paused(d dialect.Dialect, topics, tenants string) string {
	return `CASE WHEN o.topic IN ` + topics + ` THEN 1 = 1 ELSE ` + Tenant(d) + ` IN ` + tenants + ` END`
}

const (
	DeadExhausted    = "exhausted"
	DeadUnacceptable = "unacceptable"
	DeadMalformed    = "malformed"
	DeadInvalid      = "invalid"
	DeadCancelled    = "cancelled"
)

const (
	BlockedRefused  = "refused"  // the head was refused and is tried again
	BlockedUnknown  = "unknown"  // it is not known whether the head was sent
	BlockedDead     = "dead"     // the head is a dead letter
	BlockedReplayed = "replayed" // the head was a dead letter and is in the outbox again
	BlockedReleased = "released" // the head is the first message that waited behind a dead letter
)

// ShownDeadKeys is the maximum number of keys that DeadKeys returns.
const ShownDeadKeys = 3

// DeadKey is an ordering key whose messages wait for a dead letter.
type DeadKey struct {
	OrderingKey string
	Letter      int64 // ID of the dead letter
}

func (k DeadKey) String() string {
	return fmt.Sprintf("ordering key %q is blocked by dead letter %d", k.OrderingKey, k.Letter)
}

// Remedy returns the commands that unblock the key.
func (k DeadKey) Remedy() string {
	return fmt.Sprintf("once dead replay %[1]d sends the letter again, once dead discard %[1]d gives it up, "+
		"and once dead release '%[2]s' sends the messages that wait for it", k.Letter, strings.ReplaceAll(k.OrderingKey, `'`, `'\''`))
}

// NotBehindDead is true for rows f of the outbox that do not wait for a dead letter.
const NotBehindDead = `NOT EXISTS (SELECT 1 FROM {blocked_keys} AS b
	WHERE b.ordering_key = f.ordering_key AND b.reason = '` + BlockedDead + `')`

// Letter is the ID of the dead letter that blocks the key of row b of the blocked keys, or NULL.
const Letter = `(SELECT MAX(d.id) FROM {outbox_dead} AS d
	WHERE b.reason = '` + BlockedDead + `' AND d.position = b.position AND d.ordering_key = b.ordering_key)`

// DeadKeys returns the first ordering keys that dead letters block.
func DeadKeys(ctx context.Context, tx *sql.Tx, d dialect.Dialect) (keys []DeadKey, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var k DeadKey
		err := scan(&k.OrderingKey, &k.Letter)
		keys = append(keys, k)
		return err
	}, d.SQL(`
		SELECT b.ordering_key, `+Letter+`
		FROM {blocked_keys} AS b
		WHERE b.reason = '`+BlockedDead+`'
		  AND EXISTS (SELECT 1 FROM {outbox_dead} AS d WHERE d.position = b.position AND d.ordering_key = b.ordering_key)
		ORDER BY b.ordering_key LIMIT $1`), ShownDeadKeys)
	return keys, err
}
