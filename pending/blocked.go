package pending

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// BlockedKey is an ordering key whose messages wait for one of them, the head.
type BlockedKey struct {
	OrderingKey string

	// Head is the ID of the head. If Dead is set, the head is a dead letter, see
	// deadletter.Letter.Position: the other messages are sent when it is replayed or
	// discarded, or when deadletter.Letters.Release releases the key.
	Head int64
	Dead bool

	// Reason is why the head blocks the key: "refused", "unknown" (it may have been
	// sent), "dead", "replayed" (it was a dead letter) or "released" (it waited for a
	// dead letter).
	Reason string

	// BlockedAt is the time since which the key is blocked.
	BlockedAt time.Time

	// MessageID, Topic, Attempts and DueAt are those of the head, see Message. They
	// are empty if the head is a dead letter, or if somebody removed it by hand.
	MessageID, Topic string
	Attempts         int
	DueAt            time.Time
}

// KeyFilter selects blocked keys.
type KeyFilter struct {
	// OrderingKey is the only key to return. Defaults to all keys.
	OrderingKey string

	// AfterKey is the last key of the page before: keys come in alphabetical order.
	AfterKey string

	// Limit is the largest number of keys. Defaults to 100.
	Limit int
}

// BlockedKeys returns a page of the blocked keys that match. It does not count the
// messages that wait, because no index finds them.
func (m *Messages) BlockedKeys(ctx context.Context, f KeyFilter) ([]BlockedKey, error) {
	var keys []BlockedKey
	c := &operate.Conditions{}
	c.Add(`b.ordering_key > %s`, f.AfterKey)
	if f.OrderingKey != "" {
		c.Add(`b.ordering_key = %s`, f.OrderingKey)
	}
	query := m.dialect.SQL(`
		SELECT b.ordering_key, b.position, b.reason, {millis b.blocked_at}, COALESCE(o.message_id, ''), COALESCE(o.topic, ''),
		       COALESCE(o.attempts, 0), {millis o.due_at}
		FROM {blocked_keys} AS b LEFT JOIN {outbox} AS o ON o.position = b.position AND o.ordering_key = b.ordering_key
		` + c.Where() + ` ORDER BY b.ordering_key LIMIT ` + c.Arg(cmp.Or(f.Limit, page)))
	var err error
	if f.Limit < 0 {
		err = fmt.Errorf("Limit is %d: negative", f.Limit)
	} else {
		err = m.read(ctx, func(tx *sql.Tx) error {
			keys = nil
			return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
				key, err := scanKey(scan)
				keys = append(keys, key)
				return err
			}, query, c.Args...)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("pending: blocked keys: %w", err)
	}
	return keys, nil
}

func scanKey(scan func(dest ...any) error) (BlockedKey, error) {
	var (
		k       BlockedKey
		blocked int64
		due     sql.NullInt64
	)
	err := scan(&k.OrderingKey, &k.Head, &k.Reason, &blocked, &k.MessageID, &k.Topic, &k.Attempts, &due)
	k.BlockedAt = fromMillis(blocked)
	if due.Valid {
		k.DueAt = fromMillis(due.Int64)
	}
	k.Dead = k.Reason == outboxrow.BlockedDead
	return k, err
}
