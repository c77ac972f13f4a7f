package dead

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Replay puts letters back into the outbox in one transaction, with new positions and no failed
// attempts, in the order of [Letters.ReplayMatching]. If one does not exist ([operate.ErrNotFound])
// or needs force ([operate.ErrNeedsForce]), it replays none.
func (l *Letters) Replay(ctx context.Context, act operate.Act, ids ...int64) error {
	return l.table.replayIDs(ctx, act, ids, l.replay())
}

// ReplayMatching puts the letters that match f back into the outbox, in ascending order of their
// IDs, with new positions and no failed attempts. The same transaction deletes the letter, so each
// goes back once, even if two replays run at the same time.
//
// A letter that blocks its ordering key is sent before the messages that wait behind
// it. All other letters are sent after the messages that are already in the outbox, and
// so after later messages of their key.
//
// Letters that arrive while it runs are not replayed. When ctx ends, it stops after a batch. The
// Report counts the replayed letters even after an error, but not those of a commit with an unknown
// outcome.
//
// The progress is stored in the table of replays. quarantine.Entries.Replays lists the replay,
// quarantine.Entries.StopReplay stops it ([operate.ErrReplayStopped]), and [Letters.Resume]
// continues it. If no letter matches, no row is stored, and Report.ID is 0.
func (l *Letters) ReplayMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Replay, error) {
	return l.table.replayMatching(ctx, act, f, plan, l.replay())
}

// Resume continues a replay that was paused, stopped or abandoned, with its Filter and Plan, and
// counts the messages of the whole replay. progress may be nil. If it cannot be continued, Resume
// returns [operate.ErrReplayNotFound], [operate.ErrReplayFinished] or [operate.ErrReplayRunning].
func (l *Letters) Resume(ctx context.Context, act operate.Act, id int64, progress func(operate.Report)) (operate.Replay, error) {
	return l.table.resume(ctx, act, id, progress, l.replay())
}

func (l *Letters) replay() operation {
	return operation{
		name: "replay", do: l.putBack,
		unsure: "unknown", unfit: "reason IN ('" + ReasonMalformed + "', '" + ReasonInvalid + "')",
	}
}

func (l *Letters) putBack(ctx context.Context, tx *sql.Tx, letters []row) error {
	positions, err := l.table.copyToOutbox(ctx, tx, "a.unknown", letters)
	if err != nil {
		return err
	}
	failpoint.Hit("dead/letters-put-back")
	var (
		from, to []int64
		keys     []string
	)
	for i, letter := range letters {
		if letter.key != "" {
			from, to, keys = append(from, letter.position), append(to, positions[i]), append(keys, letter.key)
		}
	}
	// The key stays blocked by the message, now at a higher position than those that wait.
	d := l.table.Dialect
	if _, err := tx.ExecContext(ctx, d.SQL(`
		UPDATE {blocked_keys} AS b SET position = c.new_position, reason = '`+outboxrow.BlockedReplayed+`'
		FROM `+d.Columns("old_position bigint", "ordering_key text", "new_position bigint")+`
		WHERE b.ordering_key = c.ordering_key AND b.position = c.old_position AND b.reason = '`+outboxrow.BlockedDead+`'`),
		d.List(from), d.Strings(keys), d.List(to)); err != nil {
		return err
	}
	failpoint.Hit("dead/blocked-keys-moved")
	return l.table.remove(ctx, tx, letters)
}

// Release unblocks an ordering key that a dead letter blocks, or returns [ErrNotBlocked]. The
// letter stays, and a later replay sends it after the messages that waited behind it.
func (l *Letters) Release(ctx context.Context, act operate.Act, orderingKey string) error {
	err := act.Validate()
	if err == nil {
		err = l.release(ctx, act, orderingKey)
	}
	if err != nil {
		return fmt.Errorf("dead: release: %w", err)
	}
	return nil
}

func (l *Letters) release(ctx context.Context, act operate.Act, key string) error {
	return l.table.Write(ctx, func(tx *sql.Tx) error {
		var position int64
		err := tx.QueryRowContext(ctx, l.table.SQL(`SELECT position FROM {blocked_keys}
			WHERE ordering_key = $1 AND reason = '`+outboxrow.BlockedDead+`' {for_update}`), key).Scan(&position)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: %q", ErrNotBlocked, key)
		}
		if err != nil {
			return err
		}
		if err := rows.Unblock(ctx, tx, l.table.Dialect, []int64{position}, []string{key}); err != nil {
			return err
		}
		err = rows.Audit(ctx, tx, l.table.Dialect, act.Actor, act.Why, "release", 0, []string{"key:" + key}, []string{""})
		failpoint.Hit("dead/key-released")
		return err
	})
}

// Discard deletes letters for good, in one transaction. If one does not exist
// ([operate.ErrNotFound]), it deletes none. The messages behind a deleted letter are then sent.
// Act.Why is required.
func (l *Letters) Discard(ctx context.Context, act operate.Act, ids ...int64) error {
	err := act.ValidateLoss()
	if err == nil {
		err = l.table.changeIDs(ctx, act, ids, l.discard())
	}
	if err != nil {
		return fmt.Errorf("dead: discard: %w", err)
	}
	return nil
}

// DiscardMatching deletes the letters that match f for good, as [Letters.Discard] does, in several
// transactions, and returns their number, even with an error, but without those of a commit with an
// unknown outcome. When ctx ends, it stops after a batch.
func (l *Letters) DiscardMatching(ctx context.Context, act operate.Act, f operate.Filter) (discarded int, err error) {
	if err = act.ValidateLoss(); err == nil {
		discarded, err = l.table.changeMatching(ctx, act, f, l.discard())
	}
	if err != nil {
		return discarded, fmt.Errorf("dead: discard: %w", err)
	}
	return discarded, nil
}

func (l *Letters) discard() operation {
	return operation{name: "discard", unsure: "1 = 0", unfit: "1 = 0", do: l.deleteLetters}
}

func (l *Letters) deleteLetters(ctx context.Context, tx *sql.Tx, letters []row) error {
	var (
		positions []int64
		keys      []string
	)
	for _, letter := range letters {
		if letter.key != "" {
			positions, keys = append(positions, letter.position), append(keys, letter.key)
		}
	}
	if err := rows.Unblock(ctx, tx, l.table.Dialect, positions, keys); err != nil {
		return err
	}
	return l.table.remove(ctx, tx, letters)
}

// DryRun returns the letters that ReplayMatching would replay or skip with the same Filter and
// Plan, as groups in ascending order of Fingerprint, and changes nothing. With Plan.Force,
// DiscardMatching would delete the same letters.
func (l *Letters) DryRun(ctx context.Context, f operate.Filter, plan operate.Plan) ([]operate.Group, error) {
	groups := map[string]*rows.Group{}
	err := l.table.dryRun(ctx, f, plan, l.replay(), `fingerprint, reason, last_error, topic, {millis died_at}`,
		func(scan func(dest ...any) error, id, force *int64) error {
			var (
				g    = rows.Group{Group: operate.Group{Count: 1, Topics: make([]string, 1)}}
				died int64
			)
			if err := scan(id, force, &g.Fingerprint, &g.Reason, &g.Error, &g.Topics[0], &died); err != nil {
				return err
			}
			g.FirstFailedAt, g.LastFailedAt, g.LastID = rows.Millis(died), rows.Millis(died), *id
			if *force != noForce && !plan.Force {
				g.Skipped = []int64{*id}
			}
			if known, ok := groups[g.Fingerprint]; ok {
				known.Add(g)
			} else {
				groups[g.Fingerprint] = &g
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("dead: dry run: %w", err)
	}
	var found []operate.Group
	for _, fingerprint := range slices.Sorted(maps.Keys(groups)) {
		found = append(found, groups[fingerprint].Group)
	}
	return found, nil
}

var errLimit = errors.New("the Limit is reached")

// dryRun calls read for each row that op would examine, in the order of the IDs, to read the ID,
// the reason why the row needs force (see row.force), and columns.
func (t *table) dryRun(
	ctx context.Context, f operate.Filter, plan operate.Plan, op operation, columns string,
	read func(scan func(dest ...any) error, id, force *int64) error,
) error {
	if err := errors.Join(t.CheckChange(f), rows.CheckPlan(plan)); err != nil {
		return err
	}
	replayed := 0
	err := t.Look(ctx, func(tx *sql.Tx) error {
		c, err := t.selected(ctx, tx, f)
		if err != nil {
			return err
		}
		query := `SELECT id, ` + t.forceColumn(op, c) + `, ` + columns + ` FROM ` + t.Name + ` ` + c.Where() + ` ORDER BY id`
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			if f.Limit > 0 && replayed == f.Limit {
				return errLimit
			}
			var id, force int64
			err := read(scan, &id, &force)
			if force == noForce || plan.Force {
				replayed++
			}
			return err
		}, t.SQL(query), c.Args...)
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}
