package outbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// LockKey is [Outbox.LockKey] for PostgreSQL and the table prefix "once_".
func LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	return standard().LockKey(ctx, tx, keys...)
}

// LockKey locks ordering keys until tx ends: other transactions that lock one of
// them wait. So the events of a key are sent in the order in which their
// transactions commit.
//
// Call it once, with all keys, before tx locks anything else. Otherwise two
// transactions can deadlock, and PostgreSQL ends one of them. Every transaction that
// publishes under the key must call it, because the lock does not stop transactions
// that do not. You do not need it if all of them lock the same row, such as the row
// of the aggregate, before they publish.
//
// In PostgreSQL it takes a transaction-level advisory lock, which also works through
// a pooler; ctx and lock_timeout bound the wait. SQLite has one writer at a time, so
// tx becomes the writer. The order of keys does not matter. LockKey returns
// [ErrNoTransaction] if tx is nil, and an error if there is no key or an empty key.
func (o *Outbox) LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	if tx == nil {
		return ErrNoTransaction
	}
	if len(keys) == 0 || slices.Contains(keys, "") {
		return errors.New("outbox: LockKey needs at least one ordering key, and no empty key")
	}
	if _, err := tx.ExecContext(ctx, o.lock(keys)); err != nil {
		return fmt.Errorf("outbox: lock the ordering keys: %w", err)
	}
	return nil
}

// lock returns the statement that locks keys.
func (o *Outbox) lock(keys []string) string {
	if o.dialect.SQLite() {
		return o.dialect.SQL(`DELETE FROM {outbox} WHERE 0`)
	}
	locks := make([]int64, len(keys))
	for i, key := range keys {
		sum := sha256.Sum256([]byte(o.dialect.Config().Table("outbox") + "\x00" + key))
		locks[i] = int64(binary.BigEndian.Uint64(sum[:]))
	}
	slices.Sort(locks) // one order for all calls, so that they do not deadlock
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
