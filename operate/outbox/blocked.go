package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate/internal/rows"
)

// BlockedKey is an ordering key whose messages wait for one message of the key, the head.
type BlockedKey struct {
	OrderingKey string

	// Head is the ID of the head. If Dead is true, it is a dead letter, see dead.Letter.Position,
	// and the other messages are sent when it is replayed or discarded, or dead.Letters.Release
	// releases the key.
	Head int64
	Dead bool

	// Letter is the ID of the dead letter, or 0 if the head is not a dead letter.
	Letter int64

	// Reason says why the other messages wait for the head:
	//
	//   - "refused": the broker refused the head, and the forwarder tries it again.
	//   - "unknown": the head may have been sent, and the forwarder tries it again.
	//   - "dead": the head is a dead letter.
	//   - "replayed": the head was a dead letter. A replay has put it into the outbox
	//     again, and it is not sent yet.
	//   - "released": the dead letter that blocked the key does not block it any more. The
	//     head is the first message that waited behind it, and is not sent yet.
	Reason string

	BlockedAt time.Time

	// MessageID, Topic, Attempts and DueAt describe the head, see Message. They are empty if it is
	// a dead letter, or its row was deleted by hand.
	MessageID, Topic string
	Attempts         int
	DueAt            time.Time
}

// KeyFilter selects blocked keys.
type KeyFilter struct {
	// OrderingKey is the only key to return. Defaults to all keys.
	OrderingKey string

	// AfterKey is the last key of the previous page. Keys are in alphabetical order.
	AfterKey string

	// Limit is the maximum number of keys to return. Defaults to 100.
	Limit int
}

// BlockedKeys returns a page of the blocked keys that match f. No index finds the waiting messages
// of a key, so they are not counted.
func (m *Messages) BlockedKeys(ctx context.Context, f KeyFilter) ([]BlockedKey, error) {
	var keys []BlockedKey
	c := &rows.Conditions{}
	c.Add(`b.ordering_key > %s`, f.AfterKey)
	if f.OrderingKey != "" {
		c.Add(`b.ordering_key = %s`, f.OrderingKey)
	}
	query := m.db.SQL(`
		SELECT b.ordering_key, b.position, b.reason, {millis b.blocked_at}, COALESCE(o.message_id, ''), COALESCE(o.topic, ''),
		       COALESCE(o.attempts, 0), {millis o.due_at},
		       COALESCE(` + outboxrow.Letter + `, 0)
		FROM {blocked_keys} AS b LEFT JOIN {outbox} AS o ON o.position = b.position AND o.ordering_key = b.ordering_key
		` + c.Where() + ` ORDER BY b.ordering_key LIMIT ` + c.Arg(cmp.Or(f.Limit, rows.PageRows)))
	var err error
	if f.Limit < 0 {
		err = fmt.Errorf("Limit is %d: negative", f.Limit)
	} else {
		err = m.db.Look(ctx, func(tx *sql.Tx) error {
			keys = nil
			return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
				key, err := scanKey(scan)
				keys = append(keys, key)
				return err
			}, query, c.Args...)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: blocked keys: %w", err)
	}
	return keys, nil
}

func scanKey(scan func(dest ...any) error) (BlockedKey, error) {
	var (
		k       BlockedKey
		blocked int64
		due     sql.NullInt64
	)
	err := scan(&k.OrderingKey, &k.Head, &k.Reason, &blocked, &k.MessageID, &k.Topic, &k.Attempts, &due, &k.Letter)
	k.BlockedAt, k.DueAt = rows.Millis(blocked), rows.Time(due)
	k.Dead = k.Reason == outboxrow.BlockedDead
	return k, err
}
