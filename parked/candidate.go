package parked

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
)

// candidate is a message that a call may change.
type candidate struct {
	id                  int64
	consumer, messageID string
	state               State
	error               string
	claimed             bool // claimed by a subscription; the lease has not ended
	abandoned           bool // claimed by a subscription; the lease has ended
	later               bool // due in the future
	busy                bool // another transaction is changing the message
	handled             bool // the inbox contains the id of the message
}

// candidates returns the messages that still exist. It locks the messages that no other
// transaction has locked, and marks the other messages as busy. While a row is locked,
// no consumer can claim the row or settle a claim of it.
func (m *Messages) candidates(ctx context.Context, tx *sql.Tx, ids []int64) ([]candidate, error) {
	found, err := m.readCandidates(ctx, tx, ids, ` {skip_locked}`)
	if err != nil || len(found) == len(ids) {
		return found, err
	}
	locked := map[int64]bool{}
	for _, c := range found {
		locked[c.id] = true
	}
	others, err := m.readCandidates(ctx, tx, ids, ``)
	for _, c := range others {
		if c.busy = true; !locked[c.id] {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Compare(a.id, b.id) })
	return found, err
}

// readCandidates reads the messages with these ids. The parameter lock is the last
// clause of the query.
func (m *Messages) readCandidates(ctx context.Context, tx *sql.Tx, ids []int64, lock string) (found []candidate, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var c candidate
		err := scan(&c.id, &c.consumer, &c.messageID, &c.state, &c.error, &c.claimed, &c.abandoned, &c.later)
		c.abandoned = c.abandoned && !c.claimed
		found = append(found, c)
		return err
	}, m.dialect.SQL(`
		SELECT p.id, p.consumer, p.message_id, p.state, p.error, `+live+`, p.state = 'waiting' AND p.token IS NOT NULL, p.due_at > {now}
		FROM {parked} AS p WHERE p.id {among $1 bigint} ORDER BY p.id`+lock), m.dialect.List(ids))
	return found, err
}

// settleInbox sets the field handled of each message that the inbox contains. For Discard
// it also inserts the ids of the other messages into the inbox.
//
// A process whose lease has ended may be frozen in an open transaction that has
// inserted the id into the inbox. In this case settleInbox waits for the end of that
// transaction. If the process has not inserted the id yet, dedup notices later that the
// lease has ended, and does not call the handler.
func (m *Messages) settleInbox(ctx context.Context, tx *sql.Tx, do Action, found []candidate) error {
	known, err := m.inInbox(ctx, tx, found)
	if err != nil {
		return err
	}
	for i := range found {
		c := &found[i]
		c.handled = known[c.id]
		if c.handled || c.problem(do) != nil || c.messageID == "" {
			continue
		}
		switch {
		case do == Discard:
			var envelope []byte
			if err := tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT envelope FROM {parked} WHERE id = $1`), c.id).Scan(&envelope); err != nil {
				return err
			}
			entered, err := m.store.Tombstone(ctx, tx, c.consumer, c.messageID, envelope)
			if err != nil {
				return err
			}
			c.handled = !entered
		case c.abandoned:
			if c.handled, err = m.store.Handled(ctx, tx, c.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// inInbox returns, for the id of each row, whether the message of the row is in the
// inbox. It does not wait for open transactions.
func (m *Messages) inInbox(ctx context.Context, tx *sql.Tx, found []candidate) (known map[int64]bool, err error) {
	known = map[int64]bool{}
	ids := make([]int64, len(found))
	for i, c := range found {
		ids[i] = c.id
	}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id  int64
			has bool
		)
		err := scan(&id, &has)
		known[id] = has
		return err
	}, m.dialect.SQL(`
		SELECT p.id, (SELECT 1 FROM {inbox} AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer) IS NOT NULL
		FROM {parked} AS p WHERE p.id {among $1 bigint}`), m.dialect.List(ids))
	return known, err
}
