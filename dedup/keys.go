package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
)

// A parked message may be handled again much later. If another message with the same
// key was applied in the meantime, the parked message is a duplicate and must be
// skipped. So the sweep keeps a key while a parked message has this key.
//
// Only Config.Key can compute the key of a parked message, and not every process has
// this function. A process that has the function writes the keys into the rows of
// parked messages when it sweeps. It does so only for old rows. A key that the sweep
// may remove was applied so long ago that its duplicates cannot be among the younger
// rows, see Config.MaxDuplicateAge.

const (
	// keySlack is added to MaxDuplicateAge to get the shortest retention of keys. After
	// this time most parked messages are resolved, so that their keys need not be computed.
	keySlack = time.Hour

	// Limits for the parked messages that one transaction reads.
	keysBatch = 500
	keysBytes = 1 << 20
)

// keyRetention returns how long a key is remembered.
func (c Config) keyRetention() time.Duration { return max(c.Retention, c.MaxDuplicateAge+keySlack) }

// expiredKeys says which keys a sweep may remove.
type expiredKeys struct {
	before        int64    // keys that were applied before this time, in Unix milliseconds, may be removed
	keptConsumers []string // keys of these consumers stay, because they have parked messages with unknown keys
}

// keyQueries are the statements for the keys of parked messages.
type keyQueries struct {
	clockAndUse string // current time, and whether the inbox contains any key
	page        string // ids and sizes of parked rows without a key
	read        string
	write       string
	unknown     string // consumers that have parked rows without a key
}

func newKeyQueries(d dialect.Dialect) keyQueries {
	// An edited or imported message counts as old, because the entry that it comes
	// from may be old.
	const unknown = `dedup_key IS NULL AND state NOT IN ` + parked.Final + `
		AND (created_at < {from_millis $1} OR edited_from IS NOT NULL OR origin IS NOT NULL)`
	return keyQueries{
		clockAndUse: d.SQL(`
			SELECT {clock},
			       (SELECT 1 FROM {inbox} WHERE message_id >= '` + keyPrefix + `' AND message_id < 'key;' LIMIT 1) IS NOT NULL`),

		page: d.SQL(`
			SELECT id, length(envelope) FROM {parked} WHERE ` + unknown + ` AND consumer IN {list $2 text} AND id > $3
			ORDER BY id LIMIT $4`),

		// Locked rows are skipped: other transactions lock them in another order, so
		// that waiting for them could lead to a deadlock.
		read: d.SQL(`
			SELECT id, envelope FROM {parked} WHERE id {among $1 bigint} ORDER BY id {skip_locked}`),

		write: d.SQL(`UPDATE {parked} SET dedup_key = $2 WHERE id = $1`),

		unknown: d.SQL(`SELECT DISTINCT consumer FROM {parked} WHERE ` + unknown),
	}
}

// recordParkedKeys writes the keys of old parked messages into their rows. It does this
// for the consumers that use the Config.Key of this Inbox. The result says which keys a
// sweep may remove.
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
	if !used {
		return expired, nil
	}
	// A duplicate may arrive until MaxDuplicateAge after an expired key was applied.
	old := expired.before + i.config.MaxDuplicateAge.Milliseconds()
	if err := i.writeKeys(ctx, old); err != nil {
		return expiredKeys{}, err
	}
	err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
			var consumer string
			err := scan(&consumer)
			expired.keptConsumers = append(expired.keptConsumers, consumer)
			return err
		}, i.sql.keys.unknown, old)
	})
	if err != nil {
		return expiredKeys{}, err
	}
	return expired, nil
}

// consumersWithKey returns the consumers for which Config.Key was called.
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

// fits returns how many messages one transaction reads together, beginning with the
// first one. Their total size is at most keysBytes, but there is at least one message.
// The parameter sizes contains the size of each message in bytes.
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

// keyOf returns the key of a parked message as it is stored in the inbox. It returns ""
// if the message cannot be decoded or has no usable key, because no handler can run
// such a message before it is edited. If Config.Key panics, the result known is false.
func (i *Inbox) keyOf(entry int64, envelope []byte) (key string, known bool) {
	msg, err := parked.Decode(envelope)
	if err != nil {
		return "", true
	}
	defer func() {
		if cause := recover(); cause != nil {
			key, known = "", false
			i.config.Logger.Error("Config.Key panicked for a parked message: the sweep keeps all keys of its consumer",
				fmt.Errorf("panic: %v", cause), fields.Message(msg.UUID, msg.Metadata, watermill.LogFields{"entry": entry}))
		}
	}()
	name := i.config.Key(msg)
	if unusable(name) != "" {
		return "", true
	}
	return keyPrefix + name, true
}

// sweepInbox removes expired rows of the inbox.
func (i *Inbox) sweepInbox(ctx context.Context) (removed int64, err error) {
	expired, failed := i.recordParkedKeys(ctx) // if this fails, expired.before is 0, so that no key is removed
	slices.Sort(expired.keptConsumers)
	removed, err = i.sweepForward(ctx, i.sql.sweepInbox, i.sql.sweepInboxFrom,
		-i.config.Retention.Milliseconds(), sweepBatch, expired.before, i.dialect.Strings(expired.keptConsumers))
	return removed, errors.Join(failed, err)
}
