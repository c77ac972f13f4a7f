package dedup

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
)

// A parked message may be handled much later. If another message with its key was applied
// meanwhile, it must be skipped as a duplicate, so the sweep keeps the keys of parked messages.
//
// Only Config.Key can compute a key, and not every process has it. One that has it writes the keys
// into the rows of old parked messages when it sweeps. Younger rows cannot contain a duplicate of a
// key that the sweep may remove, see Config.MaxDuplicateAge.

const (
	// keySlack plus MaxDuplicateAge is the shortest retention of keys. By then most parked messages
	// are resolved, so that their keys need not be computed.
	keySlack = time.Hour

	keysBatch = 500
	keysBytes = 1 << 20
)

func (c Config) keyRetention() time.Duration { return max(c.Retention, c.MaxDuplicateAge+keySlack) }

// expiredKeys says which keys a sweep may remove, by times in Unix milliseconds.
type expiredKeys struct {
	before int64 // keys that were applied before this time may be removed
	old    int64 // messages that were parked before this time may be duplicates of these keys
}

type keyQueries struct {
	clockAndUse string // current time, and whether the inbox contains any key
	page        string // ids and sizes of parked rows without a key
	read        string
	write       string
}

// oldEntry selects old quarantined messages with unknown keys, and matches the index
// parked_unkeyed. old is the placeholder of expiredKeys.old.
func oldEntry(old string) string {
	return `state || '' = 'quarantined' AND dedup_key IS NULL AND created_at < {from_millis ` + old + `}`
}

// otherUnknownKeys returns a query for the other parked messages whose unknown key may have
// expired: those that wait, and edited and imported ones, whose original may be old. Each part
// matches an index, so that the query does not read the quarantine.
func otherUnknownKeys(columns, old string) string {
	var parts []string
	for _, condition := range []string{
		`state = 'waiting' AND crashes = 0 AND created_at < {from_millis ` + old + `}`,
		`state = 'waiting' AND crashes > 0 AND created_at < {from_millis ` + old + `}`,
		`state = 'held' AND created_at < {from_millis ` + old + `}`,
		`edited_from IS NOT NULL AND state NOT IN ` + parkedrows.Final,
		`origin IS NOT NULL AND state NOT IN ` + parkedrows.Final,
		`consumer IS NULL AND state || '' = 'quarantined' AND created_at < {from_millis ` + old + `}`, // if somebody has changed the table
	} {
		parts = append(parts, `SELECT `+columns+` FROM {parked} WHERE dedup_key IS NULL AND `+condition)
	}
	return strings.Join(parts, ` UNION ALL `)
}

func newKeyQueries(d dialect.Dialect) keyQueries {
	return keyQueries{
		clockAndUse: d.SQL(`
			SELECT {clock},
			       (SELECT 1 FROM {inbox} WHERE message_id >= '` + keyPrefix + `' AND message_id < 'key;' LIMIT 1) IS NOT NULL`),

		page: d.SQL(`
			SELECT id, length(envelope) FROM {parked} WHERE id IN (
				SELECT id FROM {parked} WHERE ` + oldEntry("$1") + ` AND consumer IN {list $2 text}
				UNION ALL ` + otherUnknownKeys("id", "$1") + `) AND consumer IN {list $2 text} AND id > $3
			ORDER BY id LIMIT $4`),

		// Other transactions lock these rows in another order, so waiting for them could deadlock.
		read: d.SQL(`
			SELECT id, envelope FROM {parked} WHERE id {among $1 bigint} ORDER BY id {skip_locked}`),

		write: d.SQL(`UPDATE {parked} SET dedup_key = $2 WHERE id = $1`),
	}
}

// recordParkedKeys writes the keys of old parked messages into their rows, for the consumers with
// this Inbox's Config.Key. The result says which keys a sweep may remove.
func (i *Inbox) recordParkedKeys(ctx context.Context) (expiredKeys, error) {
	var now int64
	var used bool
	err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, i.sql.keys.clockAndUse).Scan(&now, &used)
	})
	if err != nil {
		return expiredKeys{}, err
	}
	expired := expiredKeys{before: now - i.config.keyRetention().Milliseconds()}
	// A duplicate may arrive until MaxDuplicateAge after an expired key was applied.
	expired.old = expired.before + i.config.MaxDuplicateAge.Milliseconds()
	if !used {
		return expired, nil
	}
	if err := i.writeKeys(ctx, expired.old); err != nil {
		return expiredKeys{}, err
	}
	return expired, nil
}

func (i *Inbox) consumersWithKey() (consumers []string) {
	if i.config.Key == nil {
		return nil
	}
	if i.config.Consumer != "" {
		return []string{i.config.Consumer}
	}
	i.keyConsumers.Range(func(name, _ any) bool {
		consumers = append(consumers, name.(string)) //nolint:forcetypeassert // nothing else is stored
		return true
	})
	return consumers
}

func (i *Inbox) writeKeys(ctx context.Context, old int64) error {
	consumers := i.consumersWithKey()
	if len(consumers) == 0 {
		return nil
	}
	names := i.dialect.Strings(consumers)
	for last, more := int64(0), true; more; {
		var ids, sizes []int64
		err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
				var id, size int64
				err := scan(&id, &size)
				ids, sizes = append(ids, id), append(sizes, size)
				return err
			}, i.sql.keys.page, old, names, last, keysBatch)
		})
		if err != nil {
			return err
		}
		more = len(ids) == keysBatch
		for len(ids) > 0 {
			n := fits(sizes)
			if err := i.writeKeyBatch(ctx, ids[:n]); err != nil {
				return err
			}
			last, ids, sizes = ids[n-1], ids[n:], sizes[n:]
		}
	}
	return nil
}

// fits returns how many messages one transaction reads: up to keysBytes, but at least one.
func fits(sizes []int64) (n int) {
	n = 1
	for bytes := sizes[0]; n < len(sizes) && bytes+sizes[n] <= keysBytes; n++ {
		bytes += sizes[n]
	}
	return n
}

func (i *Inbox) writeKeyBatch(ctx context.Context, ids []int64) error {
	return i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		keys := map[int64]string{}
		err := dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
			var id int64
			var envelope []byte
			err := scan(&id, &envelope)
			if key, known := i.keyOf(id, envelope); err == nil && known {
				keys[id] = key
			}
			return err
		}, i.sql.keys.read, i.dialect.List(ids))
		if err != nil {
			return err
		}
		for id, key := range keys {
			if _, err := tx.ExecContext(ctx, i.sql.keys.write, id, key); err != nil {
				return err
			}
		}
		return nil
	})
}

// keyOf returns the key of a parked message, or "" if it cannot be decoded or has no usable key: no
// handler can run it before it is edited. If Config.Key panics, known is false.
func (i *Inbox) keyOf(entry int64, envelope []byte) (key string, known bool) {
	msg, err := parkedrows.Decode(envelope)
	if err != nil {
		return "", true
	}
	var name string
	if err := chain.Run(func() error { name = i.config.Key(msg); return nil }); err != nil {
		i.config.Logger.Error("Config.Key panicked for a parked message: the sweep keeps all keys of its consumer",
			err, meta.LogFields(msg.UUID, msg.Metadata, watermill.LogFields{"entry": entry}))
		return "", false
	}
	if unusable(name) != "" {
		return "", true
	}
	return keyPrefix + name, true
}

func (i *Inbox) sweepInbox(ctx context.Context) (removed int64, err error) {
	expired, failed := i.recordParkedKeys(ctx) // if this fails, expired.before is 0, so that no key is removed
	failpoint.Hit("dedup/keys-recorded")
	removed, err = i.removeExpired(ctx, expired)
	return removed, errors.Join(failed, err)
}

func (i *Inbox) removeExpired(ctx context.Context, expired expiredKeys) (removed int64, err error) {
	return i.sweepForward(ctx, i.sql.sweepInbox, i.sql.sweepInboxFrom,
		-i.config.Retention.Milliseconds(), sweepBatch, expired.before, expired.old)
}
