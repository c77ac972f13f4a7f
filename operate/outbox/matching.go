package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// batchRows is small, because other transactions wait for the locks of a batch.
	batchRows = 100

	// A dry run locks nothing, and each batch reads a window of the outbox, so small ones would
	// read the same rows many times.
	dryRunRows = 2_000
)

func (m *Messages) known(ctx context.Context, tx *sql.Tx, ids []int64) (messageIDs []string, err error) {
	found := map[int64]bool{}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id        int64
			messageID string
		)
		err := scan(&id, &messageID)
		found[id] = true
		messageIDs = append(messageIDs, messageID)
		return err
	}, m.db.SQL(`SELECT position, message_id FROM {outbox} WHERE position {among $1 bigint} ORDER BY position {for_update}`),
		m.db.List(ids))
	for _, id := range ids {
		if err == nil && !found[id] {
			err = notFound(id)
		}
	}
	return messageIDs, err
}

// margin is the minimum time between a safe cancel and the due time, at which a forwarder reads the
// message: the cancel must be committed before.
const margin = 5 * time.Second

type candidate struct {
	id             int64
	messageID, key string
	later          bool // due more than margin from now, so no forwarder has read the message
	unread         bool // no forwarder can have read the message, because later is true or because of a barrier
	head           bool // the message blocks its key
	busy           bool // another transaction is changing the message
}

var notYet = `(o.due_at IS NOT NULL AND o.due_at > {after ` + strconv.FormatInt(margin.Milliseconds(), 10) + `})`

// barriers are why forwarders cannot read some messages: blocked keys, and slots without a lease.
type barriers struct {
	keys  []string
	slots []int64
}

// barriers returns which ordering keys of the messages are blocked, and which slots have no lease.
// With lock, a forwarder that wants to unblock a key or take a slot must wait until the transaction
// ends. A row that another transaction has locked is left out, because a forwarder may be changing
// it now; to wait could deadlock, because forwarders lock these rows in other orders.
func (m *Messages) barriers(ctx context.Context, tx *sql.Tx, ids []int64, lock bool) (b barriers, err error) {
	tail := ""
	if lock {
		tail = ` {skip_locked}`
	}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var key string
		err := scan(&key)
		b.keys = append(b.keys, key)
		return err
	}, m.db.SQL(`SELECT ordering_key FROM {blocked_keys}
		WHERE ordering_key IN (SELECT o.ordering_key FROM {outbox} AS o WHERE o.position {among $1 bigint})
		ORDER BY ordering_key`+tail), m.db.List(ids))
	if err != nil {
		return b, err
	}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var slot int64
		err := scan(&slot)
		b.slots = append(b.slots, slot)
		return err
	}, m.db.SQL(`SELECT slot FROM {slots}
		WHERE (owner IS NULL OR lease_until IS NULL OR lease_until < {now})
		  AND slot IN (SELECT o.slot FROM {outbox} AS o WHERE o.position {among $1 bigint})
		ORDER BY slot`+tail), m.db.List(ids))
	return b, err
}

// candidates returns the messages that still exist, with lock locked until the transaction ends.
// One that another transaction has locked is busy.
func (m *Messages) candidates(ctx context.Context, tx *sql.Tx, ids []int64, b barriers, lock bool) ([]candidate, error) {
	tail := ""
	if lock {
		tail = ` {skip_locked}`
	}
	var all []candidate
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var c candidate
		err := scan(&c.id, &c.messageID, &c.key, &c.later, &c.unread, &c.head)
		all = append(all, c)
		return err
	}, m.db.SQL(`
		SELECT o.position, o.message_id, COALESCE(o.ordering_key, ''), `+notYet+`,
		       `+notYet+` OR o.slot IN {list $2 smallint} OR (o.ordering_key IS NOT NULL AND o.ordering_key IN {list $3 text}
		           AND EXISTS (SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position)),
		       EXISTS (SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position = o.position)
		FROM {outbox} AS o WHERE o.position {among $1 bigint} ORDER BY o.position`+tail),
		m.db.List(ids), m.db.List(b.slots), m.db.Strings(b.keys))
	for i, c := range all {
		all[i].busy = lock && c.head && !slices.Contains(b.keys, c.key)
	}
	if err != nil || !lock || len(all) == len(ids) {
		return all, err
	}
	return m.addBusy(ctx, tx, ids, all)
}

func (m *Messages) addBusy(ctx context.Context, tx *sql.Tx, ids []int64, all []candidate) ([]candidate, error) {
	found := make(map[int64]bool, len(all))
	for _, c := range all {
		found[c.id] = true
	}
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		c := candidate{busy: true}
		err := scan(&c.id)
		if !found[c.id] {
			all = append(all, c)
		}
		return err
	}, m.db.SQL(`SELECT position FROM {outbox} WHERE position {among $1 bigint}`), m.db.List(ids))
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.id, b.id) })
	return all, err
}
