package operate

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// Audit writes one row to the audit log for each element of subjects. The element of
// messageIDs with the same index is the id of the subject's message. The parameter
// replayID is 0 if the act does not belong to a stored replay.
func Audit(
	ctx context.Context, tx *sql.Tx, d dialect.Dialect, actor, why, action string, replayID int64, subjects, messageIDs []string,
) error {
	_, err := tx.ExecContext(ctx, d.SQL(`
		INSERT INTO {audit} (actor, action, subject, message_id, why, replay_id)
		SELECT $3, $4, c.subject, c.message_id, $5, NULLIF($6, 0) FROM `+d.Columns("subject text", "message_id text")),
		d.Strings(subjects), d.Strings(messageIDs),
		parked.Clean(actor, parked.MaxName), action, parked.Clean(why, parked.MaxError), replayID)
	return err
}

// AuditConsumer writes a row to the audit log for an act on a consumer.
func AuditConsumer(ctx context.Context, tx *sql.Tx, d dialect.Dialect, actor, why, action, subject, consumer string) error {
	_, err := tx.ExecContext(ctx, d.SQL(`INSERT INTO {audit} (actor, action, subject, consumer, why) VALUES ($1, $2, $3, $4, $5)`),
		parked.Clean(actor, parked.MaxName), action, subject, consumer, parked.Clean(why, parked.MaxError))
	return err
}
