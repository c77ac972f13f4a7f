package rows

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
)

// Audit writes one row to the audit log for each subject, with the message id at the same index.
// replayID is 0 if the act belongs to no stored replay.
func Audit(
	ctx context.Context, tx *sql.Tx, d dialect.Dialect, actor, why, action string, replayID int64, subjects, messageIDs []string,
) error {
	_, err := tx.ExecContext(ctx, d.SQL(`
		INSERT INTO {audit} (actor, action, subject, message_id, why, replay_id)
		SELECT $3, $4, c.subject, c.message_id, $5, NULLIF($6, 0) FROM `+d.Columns("subject text", "message_id text")),
		d.Strings(subjects), d.Strings(messageIDs),
		parkedrows.Clean(actor, parkedrows.MaxName), action, parkedrows.Clean(why, parkedrows.MaxError), replayID)
	return err
}

// AuditConsumer writes a row to the audit log for an act on a consumer.
func AuditConsumer(ctx context.Context, tx *sql.Tx, d dialect.Dialect, actor, why, action, subject, consumer string) error {
	_, err := tx.ExecContext(ctx, d.SQL(`INSERT INTO {audit} (actor, action, subject, consumer, why) VALUES ($1, $2, $3, $4, $5)`),
		parkedrows.Clean(actor, parkedrows.MaxName), action, subject, consumer, parkedrows.Clean(why, parkedrows.MaxError))
	return err
}

// AuditReplay writes a row to the audit log for an act on a stored replay.
func AuditReplay(ctx context.Context, tx *sql.Tx, d dialect.Dialect, actor, why, action string, id int64) error {
	_, err := tx.ExecContext(ctx, d.SQL(`
		INSERT INTO {audit} (actor, action, subject, consumer, why, replay_id)
		SELECT $1, $2, 'replay:' || id, consumer, $3, id FROM {replays} WHERE id = $4`),
		parkedrows.Clean(actor, parkedrows.MaxName), action, parkedrows.Clean(why, parkedrows.MaxError), id)
	return err
}

// act began or resumed the replay that pauses because of reason.
func auditPause(ctx context.Context, tx *sql.Tx, d dialect.Dialect, act operate.Act, reason string, id int64) error {
	if act.Why != "" {
		reason += "; reason of the replay: " + act.Why
	}
	return AuditReplay(ctx, tx, d, act.Actor, reason, "pause", id)
}

// PauseReason says why a replay pauses after err: for a context that has ended the cause, which
// signal.NotifyContext sets to the name of the signal.
func PauseReason(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "interrupted: " + usercode.Guard(context.Cause(ctx)).Error()
	}
	return "an error: " + err.Error()
}
