package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// ReplayMatching gives all entries that match now back to the consumers that failed. The messages
// are due immediately, and their attempts and crashes are counted from zero again. ReplayMatching
// waits until every message has been handled or is in quarantine again. It returns [ErrNotRunning]
// if one of the consumers is not running.
//
// A consumer can have one running replay at a time: a second one returns
// [operate.ErrReplayRunning]. A Filter without a consumer is one of all consumers. The progress is
// stored with each batch. When ctx ends, the replay is paused. If the process dies, it counts as
// abandoned after operate.Config.ReplayLease. [Entries.Resume] continues, and replays no message
// twice. If the Plan or [Entries.StopReplay] stops it, ReplayMatching returns
// [operate.ErrReplayStopped].
//
// Messages that could not be decoded return to quarantine immediately, without a call of the
// handler, and count as failed: edit them.
//
// If no entry matches, no replay is stored, and the ID is 0. If no entry has the
// Filter.Fingerprint, ReplayMatching returns [operate.ErrNotFound]. After another error, it also
// returns the latest known state of the replay.
func (q *Entries) ReplayMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Replay, error) {
	if plan.Window == 0 {
		plan.Window = 1000
		if plan.StopOnFailure {
			plan.Window = 100
		}
	}
	err := errors.Join(act.Validate(), q.table.CheckChange(f), plan.Validate())
	if err == nil {
		err = q.checkRunning(ctx, f, replayStates(plan, f)...)
	}
	var r operate.Replay
	if err == nil {
		r, err = q.table.replays.Begin(ctx, act, f, plan)
	}
	if err != nil {
		return r, fmt.Errorf("quarantine: replay: %w", err)
	}
	return r, nil
}

// Resume continues a replay that was paused, stopped or abandoned, with its Filter and Plan, and
// returns the results of [Entries.ReplayMatching]. Failures of messages that were replayed before
// do not stop it again, even with Plan.StopOnFailure. progress may be nil.
func (q *Entries) Resume(ctx context.Context, act operate.Act, id int64, progress func(operate.Report)) (operate.Replay, error) {
	r, err := q.table.replays.Resume(ctx, act, id, progress)
	if err != nil {
		return r, fmt.Errorf("quarantine: resume: %w", err)
	}
	return r, nil
}

// ReplayOf returns the current state of the replay with this ID, or [operate.ErrReplayNotFound].
func (q *Entries) ReplayOf(ctx context.Context, id int64) (operate.Replay, error) {
	r, err := q.table.replays.Get(ctx, id)
	if err != nil {
		return operate.Replay{}, fmt.Errorf("quarantine: %w", err)
	}
	return r, nil
}

// Replays returns a page of replays, the latest first, also those of the dead letters and the sent
// log of this database. before is the ID of the last replay of the previous page, or 0.
func (q *Entries) Replays(ctx context.Context, before int64) ([]operate.Replay, error) {
	all, err := q.table.replays.Latest(ctx, before)
	if err != nil {
		return nil, fmt.Errorf("quarantine: %w", err)
	}
	return all, nil
}

// StopReplay stops a running replay, and returns its state. The replay may belong to another
// process, or to one that died. No further messages are replayed. Messages that were already
// replayed are still handled. The process that runs the replay notices the stop before its next
// batch: its ReplayMatching or Resume returns [operate.ErrReplayStopped].
//
// [Entries.Resume] continues the replay. If the replay is already paused or stopped, StopReplay
// changes nothing. If the replay does not exist, StopReplay returns [operate.ErrReplayNotFound]; if
// it has finished, [operate.ErrReplayFinished].
func (q *Entries) StopReplay(ctx context.Context, act operate.Act, id int64) (operate.Replay, error) {
	r, err := q.table.replays.Stop(ctx, act, id)
	if err != nil {
		return operate.Replay{}, fmt.Errorf("quarantine: stop: %w", err)
	}
	return r, nil
}

const replayBatch = 200

// Resolved entries are included only with Plan.Force, and if Filter.IDs lists them.
func replayStates(p operate.Plan, f operate.Filter) []string {
	if p.Force && f.IDs != nil {
		return []string{parkedrows.Quarantined, parkedrows.Resolved}
	}
	return []string{parkedrows.Quarantined}
}

func (t *table) countForReplay(ctx context.Context, f operate.Filter, plan operate.Plan) (n int, last int64, err error) {
	where := t.where(f, replayStates(plan, f)...)
	size := t.SQL(`SELECT COUNT(*), COALESCE(MAX(id), 0) FROM (
		SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(limit(f)) + `) AS chosen`)
	err = t.Look(ctx, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, size, where.Args...).Scan(&n, &last) })
	return n, last, err
}

// take makes up to n more entries due. One that was discarded in the meantime stays discarded, and
// its id in the inbox.
func (t *table) take(ctx context.Context, tx *sql.Tx, r *rows.Replay, n int) (after int64, due, skipped []int64, err error) {
	states := replayStates(r.Plan, r.Filter)
	where := t.where(r.Filter, states...)
	ids, err := rows.IDs(ctx, tx, t.SQL(`SELECT id FROM {parked} WHERE `+where.String()+
		` AND id > `+where.Arg(r.AfterID)+` AND id <= `+where.Arg(r.UntilID)+
		` AND (replay_id IS NULL OR replay_id <> `+where.Arg(r.ID)+`) ORDER BY id LIMIT `+where.Arg(n)), where.Args...)
	if err != nil || len(ids) == 0 {
		return 0, nil, nil, err
	}
	due, err = rows.IDs(ctx, tx, t.sql.makeDue+stateIn(states)+` RETURNING id`, r.ID, t.List(ids))
	if err != nil {
		return 0, nil, nil, err
	}
	failpoint.Hit("replay/due")
	changed := t.List(due)
	if r.Plan.Force {
		if _, err := tx.ExecContext(ctx, t.sql.forgetInbox, changed); err != nil {
			return 0, nil, nil, err
		}
		failpoint.Hit("replay/inbox-forgotten")
	}
	_, err = tx.ExecContext(ctx, t.sql.auditReplayed,
		parkedrows.Clean(r.Act.Actor, parkedrows.MaxName), parkedrows.Clean(r.Act.Why, parkedrows.MaxError), changed)
	return ids[len(ids)-1], due, nil, err
}

// ErrNotRunning means that no process has run an entry's consumer in the last two minutes, so no
// handler would get the message. See operate.Config.ReplayToAbsent.
var ErrNotRunning = errors.New("the consumer is not running")

func (q *Entries) checkRunning(ctx context.Context, f operate.Filter, states ...string) error {
	if q.config.ReplayToAbsent {
		return nil
	}
	absent, err := q.table.absent(ctx, f, states...)
	if err != nil || len(absent) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s; start it first, or set operate.Config.ReplayToAbsent", ErrNotRunning, describe(absent))
}

const maxAbsent = 5

func (t *table) absent(ctx context.Context, f operate.Filter, states ...string) (absent []parkedrows.Consumer, err error) {
	clock := `{millis now()}`
	if t.SQLite() {
		clock = `{now}`
	}
	where := t.where(f, states...)
	query := t.SQL(`
		SELECT e.consumer, e.topic, COALESCE(c.owner, ''), COALESCE(` + clock + ` - {millis c.seen_at}, 0)
		FROM (SELECT DISTINCT consumer, topic FROM (
			SELECT consumer, topic FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(limit(f)) + `) AS chosen
		) AS e LEFT JOIN {consumers} AS c ON c.topic = e.topic AND c.consumer = e.consumer
		WHERE c.seen_at IS NULL OR c.seen_at < {after ` + where.Arg(-parkedrows.AbsentAfter.Milliseconds()) + `}
		ORDER BY e.consumer, e.topic`)
	err = t.Look(ctx, func(tx *sql.Tx) error {
		absent = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var c parkedrows.Consumer
			var unseen int64
			err := scan(&c.Consumer, &c.Topic, &c.Owner, &unseen)
			c.Unseen = parkedrows.Duration(unseen)
			// A subscription of this process may have begun before its first entry in the table.
			if !t.parked.Runs(c.Consumer, c.Topic) && len(absent) < maxAbsent {
				absent = append(absent, c)
			}
			return err
		}, query, where.Args...)
	})
	if err != nil {
		return nil, fmt.Errorf("look for running consumers: %w", err)
	}
	return absent, nil
}

func describe(absent []parkedrows.Consumer) string {
	texts := make([]string, len(absent))
	for i, c := range absent {
		texts[i] = fmt.Sprintf("consumer %q on topic %q was last seen %v ago", c.Consumer, c.Topic, c.Unseen.Truncate(time.Minute))
		if c.Owner == "" {
			texts[i] = fmt.Sprintf("consumer %q on topic %q was never seen with retry's Subscriber, which brings replayed messages",
				c.Consumer, c.Topic)
		}
	}
	return strings.Join(texts, ", ")
}
