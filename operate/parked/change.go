package parked

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// RunNow makes waiting messages due immediately, in one transaction. It does not reset their
// attempts. A message that is due already keeps its due time. If a message is held ([ErrHeld]),
// claimed ([operate.ErrClaimed]), in another state ([ErrEnded]) or does not exist
// ([operate.ErrNotFound]), RunNow changes no message. A running consumer finds the messages within
// retry.Config.PollInterval.
func (m *Messages) RunNow(ctx context.Context, act operate.Act, ids ...int64) error {
	return m.changeNamed(ctx, RunNow, act, act.Validate(), ids)
}

// Cancel moves waiting and held messages into quarantine in one transaction. The reason
// of the entries is "cancelled", and their error contains Act.Why, which is required.
// Package quarantine can replay, edit and discard the entries. A cancelled message leaves its
// place in the order of its ordering key: the messages that wait for it continue, even
// with retry.BlockWhileQuarantined.
//
// If a message is claimed ([operate.ErrClaimed]), was handled ([ErrHandled]), is in another state
// ([ErrEnded]) or does not exist ([operate.ErrNotFound]), Cancel changes no message. If the
// transport delivers a copy later, the handler is called for it, as for a copy of any message in
// quarantine; Discard prevents this.
func (m *Messages) Cancel(ctx context.Context, act operate.Act, ids ...int64) error {
	return m.changeNamed(ctx, Cancel, act, act.ValidateLoss(), ids)
}

// Discard ends waiting and held messages for good, in one transaction. You can read
// their rows until dedup's retention has passed. Discard also inserts their ids into
// the inbox, so that the handler is not called for a copy. Messages that wait for a
// discarded message continue. Discard returns the same errors as [Messages.Cancel].
func (m *Messages) Discard(ctx context.Context, act operate.Act, ids ...int64) error {
	return m.changeNamed(ctx, Discard, act, act.ValidateLoss(), ids)
}

func (m *Messages) changeNamed(ctx context.Context, do Action, act operate.Act, err error, ids []int64) error {
	if err == nil {
		ids, err = rows.Distinct(ids)
	}
	if err == nil {
		_, err = m.changeBatch(ctx, do, act, ids, func(found []candidate) error {
			for i, id := range ids {
				if i >= len(found) || found[i].id != id {
					return about(id, operate.ErrNotFound)
				}
				if err := found[i].problem(do); err != nil {
					return about(id, err)
				}
			}
			return nil
		})
	}
	if err != nil && contended(err) {
		err = fmt.Errorf("%w: %w", operate.ErrClaimed, err)
	}
	if err != nil {
		return fmt.Errorf("parked: %s: %w", do, err)
	}
	return nil
}

// contended reports whether a statement waited too long for another transaction, which usually
// handles the message or a copy of it.
func contended(err error) bool {
	const lockTimeout, deadlock = "55P03", "40P01"
	return slices.Contains([]string{lockTimeout, deadlock}, dialect.State(err))
}

func (c candidate) problem(do Action) error {
	switch {
	case c.state != Waiting && c.state != Held:
		return fmt.Errorf("%w, but %s", ErrEnded, c.state)
	case c.busy, c.claimed:
		return operate.ErrClaimed
	case do == RunNow && c.state == Held:
		return ErrHeld
	case do != RunNow && c.handled:
		return ErrHandled
	}
	return nil
}

// changeBatch changes messages in one transaction, except those with a problem. If check fails, it
// changes none.
func (m *Messages) changeBatch(
	ctx context.Context, do Action, act operate.Act, ids []int64, check func(found []candidate) error,
) (report operate.Report, err error) {
	work := func(tx *sql.Tx) error {
		report = operate.Report{}
		found, err := m.candidates(ctx, tx, ids)
		if err != nil {
			return err
		}
		failpoint.Hit("parked/candidates-locked")
		if do != RunNow {
			if err := m.settleInbox(ctx, tx, do, found); err != nil {
				return err
			}
		}
		if err := check(found); err != nil {
			return err
		}
		var chosen []candidate
		for _, c := range found {
			if count(&report, do, c) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == 0 {
			return nil
		}
		return m.apply(ctx, tx, do, act, chosen)
	}
	if do == RunNow {
		err = m.db.Write(ctx, func(tx *sql.Tx) error { return m.impatient(ctx, tx, work) })
	} else {
		err = m.store.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return ids, nil },
			func(tx *sql.Tx) error { return m.impatient(ctx, tx, work) })
	}
	if err != nil {
		return operate.Report{}, err
	}
	failpoint.Hit("parked/operated")
	return report, nil
}

// impatient calls f. With PostgreSQL, a statement of f fails if it waits longer than a second for a
// lock, because other transactions wait for the locks that f has taken before.
func (m *Messages) impatient(ctx context.Context, tx *sql.Tx, f func(tx *sql.Tx) error) error {
	if !m.db.SQLite() {
		if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = 1000`); err != nil {
			return err
		}
	}
	return f(tx)
}

func count(r *operate.Report, do Action, c candidate) bool {
	switch {
	case c.state != Waiting && c.state != Held, do == RunNow && (c.state == Held || !c.later):
		return false
	case c.busy, c.claimed:
		r.Skipped = append(r.Skipped, c.id)
		return false
	case do != RunNow && c.handled:
		r.Handled = append(r.Handled, c.id)
		return false
	}
	r.Changed++
	if c.abandoned {
		r.Abandoned = append(r.Abandoned, c.id)
	}
	return true
}

type candidate struct {
	id                  int64
	consumer, messageID string
	state               string
	error               string
	claimed             bool // claimed by a subscription; the lease has not ended
	abandoned           bool // claimed by a subscription; the lease has ended
	later               bool // due in the future
	busy                bool // another transaction is changing the message
	handled             bool // the inbox contains the id of the message
}

// candidates returns the messages that still exist, locked, and marks those that another
// transaction has locked as busy. No consumer can claim a locked row or settle its claim.
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

func (m *Messages) readCandidates(ctx context.Context, tx *sql.Tx, ids []int64, lock string) (found []candidate, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var c candidate
		err := scan(&c.id, &c.consumer, &c.messageID, &c.state, &c.error, &c.claimed, &c.abandoned, &c.later)
		c.abandoned = c.abandoned && !c.claimed
		found = append(found, c)
		return err
	}, m.db.SQL(`
		SELECT p.id, p.consumer, p.message_id, p.state, p.error, `+live+`, p.state = 'waiting' AND p.token IS NOT NULL, p.due_at > {now}
		FROM {parked} AS p WHERE p.id {among $1 bigint} ORDER BY p.id`+lock), m.db.List(ids))
	return found, err
}

// settleInbox sets the field handled of messages in the inbox, and inserts the others for Discard.
//
// A process whose lease has ended may be frozen in an open transaction that has inserted the id
// into the inbox. Then settleInbox waits for the end of that transaction. If the process has not
// inserted the id yet, dedup notices later that the lease has ended, and does not call the handler.
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
			if err := tx.QueryRowContext(ctx, m.db.SQL(`SELECT envelope FROM {parked} WHERE id = $1`), c.id).Scan(&envelope); err != nil {
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
	}, m.db.SQL(`
		SELECT p.id, (SELECT 1 FROM {inbox} AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer) IS NOT NULL
		FROM {parked} AS p WHERE p.id {among $1 bigint}`), m.db.List(ids))
	return known, err
}

func (m *Messages) apply(ctx context.Context, tx *sql.Tx, do Action, act operate.Act, chosen []candidate) error {
	ids := make([]int64, len(chosen))
	for i, c := range chosen {
		ids[i] = c.id
	}
	var (
		query string
		args  = []any{m.db.List(ids)}
	)
	switch do {
	case RunNow:
		query = `UPDATE {parked} SET due_at = {now} WHERE id {among $1 bigint} AND state = 'waiting' AND token IS NULL AND due_at > {now}`
	case Discard:
		query = `UPDATE {parked} SET state = 'discarded', owner = NULL, token = NULL, finished_at = {now}
			WHERE id {among $1 bigint} AND state IN ('waiting', 'held')`
	case Cancel:
		var texts, groups []string
		for _, c := range chosen {
			text, group := cancelled(act, c)
			texts, groups = append(texts, text), append(groups, group)
		}
		// The reason of an undecodable message marks its raw form, and stays.
		query = `UPDATE {parked} AS p
			SET state = 'quarantined', owner = NULL, token = NULL, ordering_key = NULL,
			    reason = CASE WHEN ` + store.Undecodable + ` THEN reason ELSE '` + chain.ReasonCancelled + `' END,
			    error = c.error, fingerprint = c.fingerprint, error_type = '', stack = '',
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			FROM ` + m.db.Columns("id bigint", "error text", "fingerprint text") + `
			WHERE p.id = c.id AND state IN ('waiting', 'held')`
		args = append(args, m.db.Strings(texts), m.db.Strings(groups))
	}
	if _, err := tx.ExecContext(ctx, m.db.SQL(query), args...); err != nil {
		return err
	}
	failpoint.Hit("parked/applied")
	_, err := tx.ExecContext(ctx, m.db.SQL(`
		INSERT INTO {audit} (actor, action, subject, consumer, message_id, why)
		SELECT $2, $3, 'parked:' || p.id, p.consumer, p.message_id, $4 FROM {parked} AS p
		WHERE p.id {among $1 bigint} ORDER BY p.id`),
		m.db.List(ids), store.Clean(act.Actor, store.MaxName), string(do), store.Clean(act.Why, store.MaxError))
	return err
}

// Messages of a consumer that the same person cancels for the same reason share a fingerprint.
func cancelled(act operate.Act, c candidate) (text, group string) {
	text = "cancelled by " + act.Actor + ": " + act.Why
	group = store.Fingerprint(store.Cause{Consumer: c.consumer, Reason: chain.ReasonCancelled, Text: store.Clean(text, store.MaxError)})
	if c.error != "" {
		text += "; last error: " + c.error
	}
	return store.Clean(text, store.MaxError), group
}
