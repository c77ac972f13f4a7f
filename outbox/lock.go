package outbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// LockKey is like [Outbox.LockKey], for PostgreSQL and the table prefix "once_".
func LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	return standard().LockKey(ctx, tx, keys...)
}

// LockKey locks ordering keys until tx ends. Another transaction that locks one of
// these keys waits. So the events of a key are sent in the order in which their
// transactions commit.
//
// Call LockKey once, with all keys, before tx locks anything else. Otherwise two
// transactions can deadlock, and PostgreSQL ends one of them. Every transaction that
// publishes under the key must call LockKey, because a transaction without LockKey does
// not wait. You do not need LockKey if all of these transactions lock the same row
// before they publish, such as the row of the aggregate.
//
// In PostgreSQL, LockKey takes a transaction-level advisory lock, which also works
// through a connection pooler. The context and lock_timeout limit the wait. In SQLite,
// which has one writer at a time, tx becomes the writer. You can pass the keys in any
// order. LockKey returns [ErrNoTransaction] if tx is nil, and an error if keys is empty
// or contains an empty key.
func (o *Outbox) LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	if tx == nil {
		return ErrNoTransaction
	}
	statement, err := o.LockStatement(keys...)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("outbox: lock the ordering keys: %w", err)
	}
	return nil
}

// lock returns the statement that takes the locks of keys.
func (o *Outbox) lock(keys []string) string {
	if o.dialect.SQLite() {
		return o.dialect.SQL(`DELETE FROM {outbox} WHERE 0`)
	}
	locks := make([]int64, len(keys))
	for i, key := range keys {
		sum := sha256.Sum256([]byte(o.dialect.Config().Table("outbox") + "\x00" + key))
		locks[i] = int64(binary.BigEndian.Uint64(sum[:]))
	}
	slices.Sort(locks) // all calls lock in the same order, so that they do not deadlock
	var b strings.Builder
	b.WriteString(`SELECT pg_advisory_xact_lock(key) FROM (VALUES `)
	for i, lock := range slices.Compact(locks) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "(%d::bigint)", lock)
	}
	b.WriteString(`) AS keys (key)`)
	return b.String()
}
