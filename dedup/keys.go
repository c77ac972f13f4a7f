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
	"github.com/watermill-once/once/internal/parked"
)

// A parked message may run again after any time, and is then a duplicate if
// another one with its key was applied. So a key is not forgotten while a parked
// message has it. Which key that is only Config.Key can tell, and not every
// process has it: a sweep that does writes it into the row. It needs to do so
// only for rows that are old, because a key that is old enough to be forgotten
// was applied before any younger message with it could come.

const (
	// keySlack is how much longer than MaxDuplicateAge keys are remembered at
	// least: so most parked messages are gone before their key is asked for.
	keySlack = time.Hour

	// Bounds of what one transaction reads of parked messages.
	keysBatch = 500
	keysBytes = 1 << 20
)

// keyRetention is how long a key is remembered.
func (c Config) keyRetention() time.Duration { return max(c.Retention, c.MaxDuplicateAge+keySlack) }

// forgettable says which keys a sweep may remove: those that were applied before
// a time, in milliseconds, of all but some consumers.
type forgettable struct {
	before  int64
	keepAll []string // consumers with a parked message whose key is not known
}

// keyQueries are the statements about keys of parked messages.
type keyQueries struct {
	used    string
	page    string
	read    string
	write   string
	unknown string
}

func newKeyQueries(d dialect.Dialect) keyQueries {
	clock := `{millis now()}`
	if d.SQLite() {
		clock = `{now}`
	}
	// An edited message, or an imported one, has waited for as long as the
	// entry that it comes from.
	const unknown = `dedup_key IS NULL AND state NOT IN ` + parked.Final + `
		AND (created_at < {from_millis $1} OR edited_from IS NOT NULL OR origin IS NOT NULL)`
	return keyQueries{
		used: d.SQL(`
			SELECT ` + clock + `,
			       (SELECT 1 FROM {inbox} WHERE message_id >= '` + keyPrefix + `' AND message_id < 'key;' LIMIT 1) IS NOT NULL`),

		page: d.SQL(`
			SELECT id, length(envelope) FROM {parked} WHERE ` + unknown + ` AND consumer IN {list $2 text} AND id > $3
			ORDER BY id LIMIT $4`),

		// Without waiting: who settles rows takes them in another order.
		read: d.SQL(`
			SELECT id, envelope FROM {parked} WHERE id {among $1 bigint} AND dedup_key IS NULL ORDER BY id {skip_locked}`),

		write: d.SQL(`UPDATE {parked} SET dedup_key = $2 WHERE id = $1`),

		unknown: d.SQL(`SELECT DISTINCT consumer FROM {parked} WHERE ` + unknown),
	}
}

// learnKeys writes the keys of parked messages into their rows, as far as this
// Inbox knows them, and says which keys can be forgotten.
func (i *Inbox) learnKeys(ctx context.Context) (forgettable, error) {
	var now int64
	var used bool
	err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, i.sql.keys.used).Scan(&now, &used)
	})
	if err != nil {
		return forgettable{}, err
	}
	f := forgettable{before: now - i.config.keyRetention().Milliseconds()}
	if !used {
		return f, nil
	}
	// A copy that could come until MaxDuplicateAge after such a key was applied.
	old := f.before + i.config.MaxDuplicateAge.Milliseconds()
	if err := i.writeKeys(ctx, old); err != nil {
		return forgettable{}, err
	}
	err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return query(ctx, tx, func(scan func(...any) error) error {
			var consumer string
			err := scan(&consumer)
			f.keepAll = append(f.keepAll, consumer)
			return err
		}, i.sql.keys.unknown, old)
	})
	if err != nil {
		return forgettable{}, err
	}
	return f, nil
}

// serves are the consumers whose keys Config.Key tells.
func (i *Inbox) serves() (consumers []string) {
	if i.config.Key == nil {
		return nil
	}
	if i.config.Consumer != "" {
		return []string{i.config.Consumer}
	}
	i.consumers.Range(func(name, _ any) bool {
		consumers = append(consumers, name.(string)) //nolint:forcetypeassert // nothing else is stored
		return true
	})
	return consumers
}

func (i *Inbox) writeKeys(ctx context.Context, old int64) error {
	consumers := i.serves()
	if len(consumers) == 0 {
		return nil
	}
	names := i.dialect.Strings(consumers)
	for last, more := int64(0), true; more; {
		var ids, sizes []int64
		err := i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
			return query(ctx, tx, func(scan func(...any) error) error {
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
			n, bytes := 1, sizes[0]
			for n < len(ids) && bytes+sizes[n] <= keysBytes {
				bytes += sizes[n]
				n++
			}
			if err := i.writeSomeKeys(ctx, ids[:n]); err != nil {
				return err
			}
			last, ids, sizes = ids[n-1], ids[n:], sizes[n:]
		}
	}
	return nil
}

func (i *Inbox) writeSomeKeys(ctx context.Context, ids []int64) error {
	return i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		keys := map[int64]string{}
		err := query(ctx, tx, func(scan func(...any) error) error {
			var id int64
			var envelope []byte
			if err := scan(&id, &envelope); err != nil {
				return err
			}
			if key, known := i.keyIn(id, envelope); known {
				keys[id] = key
			}
			return nil
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

// keyIn returns under which id the inbox has the key of a parked message, or ""
// for one that cannot run as it is. It is not known if Config.Key panics.
func (i *Inbox) keyIn(entry int64, envelope []byte) (key string, known bool) {
	msg, err := parked.Decode(envelope)
	if err != nil {
		return "", true
	}
	defer func() {
		if cause := recover(); cause != nil {
			key, known = "", false
			i.config.Logger.Error("Config.Key panicked for a parked message: no key of its consumer is forgotten",
				fmt.Errorf("panic: %v", cause), watermill.LogFields{"entry": entry, "message_uuid": msg.UUID})
		}
	}()
	name := i.config.Key(msg)
	if unusable(name) != "" {
		return "", true
	}
	return keyPrefix + name, true
}

// sweepInbox removes what is too old, but for the keys that must stay.
func (i *Inbox) sweepInbox(ctx context.Context) (removed int64, err error) {
	keys, failed := i.learnKeys(ctx) // and if that fails, no key goes
	slices.Sort(keys.keepAll)
	removed, err = i.sweepOn(ctx, i.sql.sweepInbox, i.sql.sweepInboxFrom,
		-i.config.Retention.Milliseconds(), sweepBatch, keys.before, i.dialect.Strings(keys.keepAll))
	return removed, errors.Join(failed, err)
}
