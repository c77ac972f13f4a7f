package deadletter

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Replay puts letters back into the outbox in one transaction, with new positions and
// no failed attempts. For their order, see [Letters.ReplayMatching]. If one of them
// does not exist ([ErrNotFound]) or needs force ([ErrNeedsForce]), it replays none.
func (l *Letters) Replay(ctx context.Context, act Act, ids ...int64) error {
	err := act.Validate()
	if err == nil {
		err = l.table.changeIDs(ctx, ids, l.replay(act, Plan{}))
	}
	if err != nil {
		return fmt.Errorf("deadletter: replay: %w", err)
	}
	return nil
}

// ReplayMatching puts the letters that match f back into the outbox, in ascending order
// of their IDs, with new positions and no failed attempts. The transaction that puts a
// letter back also deletes the letter. So each letter goes back only once, even if two
// replays run at the same time.
//
// A letter that blocks its ordering key is sent before the messages that wait behind
// it. All other letters are sent after the messages that are already in the outbox, and
// so after later messages of their key.
//
// ReplayMatching does not replay letters that arrive while it runs. When ctx ends, it
// stops after a batch. The Report contains the number of replayed letters, even after
// an error. This number does not include the letters of a commit with an unknown
// outcome.
//
// The replay stores its progress in the table of replays. poison.Quarantine.Replays
// lists the replay, poison.Quarantine.StopReplay stops it ([operate.ErrReplayStopped]),
// and [Letters.Resume] continues it. If no letter matches, no row is stored, and
// Report.ID is 0.
func (l *Letters) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	report, err := l.table.replayMatching(ctx, act, f, l.replay(act, plan))
	if err != nil {
		return report, fmt.Errorf("deadletter: replay: %w", err)
	}
	return report, nil
}

// Resume continues a replay that was paused, stopped or abandoned, with the Filter and
// the Plan of the replay. The fields Total and Replayed of the Report count the
// messages of the whole replay. The parameter progress may be nil. If the replay cannot
// be continued, Resume returns [operate.ErrReplayNotFound], [operate.ErrReplayFinished]
// or [operate.ErrReplayRunning].
func (l *Letters) Resume(ctx context.Context, act Act, id int64, progress func(Report)) (Report, error) {
	report, err := l.table.resume(ctx, act, id, progress, l.replay)
	if err != nil {
		return report, fmt.Errorf("deadletter: resume: %w", err)
	}
	return report, nil
}

func (l *Letters) replay(act Act, plan Plan) operation {
	return operation{
		Plan: plan, act: act, name: "replay", do: l.putBack,
		unsure: "unknown", unfit: "reason IN ('" + ReasonMalformed + "', '" + ReasonInvalid + "')",
	}
}

func (l *Letters) putBack(ctx context.Context, tx *sql.Tx, letters []row) error {
	positions, err := l.table.copyToOutbox(ctx, tx, "a.unknown", letters)
	if err != nil {
		return err
	}
	failpoint.Hit("deadletter/letters-put-back")
	var (
		from, to []int64
		keys     []string
	)
	for i, letter := range letters {
		if letter.key != "" {
			from, to, keys = append(from, letter.position), append(to, positions[i]), append(keys, letter.key)
		}
	}
	// The key stays blocked by the same message. The message now has a higher position than
	// the messages that wait for it.
	d := l.table.dialect
	if _, err := tx.ExecContext(ctx, d.SQL(`
		UPDATE {blocked_keys} AS b SET position = c.new_position, reason = '`+outboxrow.BlockedReplayed+`'
		FROM `+d.Columns("old_position bigint", "ordering_key text", "new_position bigint")+`
		WHERE b.ordering_key = c.ordering_key AND b.position = c.old_position AND b.reason = '`+outboxrow.BlockedDead+`'`),
		d.List(from), d.Strings(keys), d.List(to)); err != nil {
		return err
	}
	failpoint.Hit("deadletter/blocked-keys-moved")
	return l.table.remove(ctx, tx, letters)
}
