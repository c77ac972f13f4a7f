package parked

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	store "github.com/watermill-once/once/internal/parked"
)

// apply changes locked messages, and writes the audit log.
func (m *Messages) apply(ctx context.Context, tx *sql.Tx, do Action, act Act, chosen []candidate) error {
	ids := make([]int64, len(chosen))
	for i, c := range chosen {
		ids[i] = c.id
	}
	var (
		query string
		args  = []any{m.dialect.List(ids)}
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
		// The raw form of an undecodable message keeps its reason, because the reason
		// marks the message as undecodable.
		query = `UPDATE {parked} AS p
			SET state = 'quarantined', owner = NULL, token = NULL, ordering_key = NULL,
			    reason = CASE WHEN ` + store.Undecodable + ` THEN reason ELSE '` + disposition.ReasonCancelled + `' END,
			    error = c.error, fingerprint = c.fingerprint, error_type = '', stack = '',
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			FROM ` + m.dialect.Columns("id bigint", "error text", "fingerprint text") + `
			WHERE p.id = c.id AND state IN ('waiting', 'held')`
		args = append(args, m.dialect.Strings(texts), m.dialect.Strings(groups))
	}
	if _, err := tx.ExecContext(ctx, m.dialect.SQL(query), args...); err != nil {
		return err
	}
	failpoint.Hit("parked/applied")
	_, err := tx.ExecContext(ctx, m.dialect.SQL(`
		INSERT INTO {audit} (actor, action, subject, consumer, message_id, why)
		SELECT $2, $3, 'parked:' || p.id, p.consumer, p.message_id, $4 FROM {parked} AS p
		WHERE p.id {among $1 bigint} ORDER BY p.id`),
		m.dialect.List(ids), store.Clean(act.Actor, store.MaxName), string(do), store.Clean(act.Why, store.MaxError))
	return err
}

// cancelled returns the error text of a cancelled message, and its fingerprint. Messages
// of a consumer that the same person cancels for the same reason share a fingerprint.
func cancelled(act Act, c candidate) (text, group string) {
	text = "cancelled by " + act.Actor + ": " + act.Why
	group = store.Fingerprint(c.consumer, disposition.ReasonCancelled, "", store.Clean(text, store.MaxError))
	if c.error != "" {
		text += "; last error: " + c.error
	}
	return store.Clean(text, store.MaxError), group
}
