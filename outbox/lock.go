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

// LockKey is [Outbox.LockKey] with PostgreSQL's tables "once_".
func LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	return standard().LockKey(ctx, tx, keys...)
}

// LockKey locks ordering keys until tx ends: another transaction that locks one
// of them waits. So the events of a key are sent in the order in which their
// transactions commit.
//
// Call it once, with all keys, before tx locks anything else. Otherwise two
// transactions can wait for each other, and PostgreSQL ends one of them as a
// deadlock. Every transaction that publishes under the key has to call it: who
// does not is not held up. It is not needed where all of them lock the same row,
// such as the aggregate's, before they publish.
//
// PostgreSQL takes an advisory lock of the transaction, also through a pooler.
// How long it waits is bounded by ctx and by lock_timeout. SQLite has one writer
// at a time, so there tx becomes the writer. The order of keys does not matter.
// LockKey fails with [ErrNoTransaction] if tx is nil, and if there is no key or an
// empty one.
func (o *Outbox) LockKey(ctx context.Context, tx *sql.Tx, keys ...string) error {
	if tx == nil {
		return ErrNoTransaction
	}
	if len(keys) == 0 || slices.Contains(keys, "") {
		return errors.New("outbox: LockKey needs ordering keys, and none of them empty")
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
	slices.Sort(locks) // in one order, or two calls could wait for each other
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
