package dead

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// operation changes rows, in a transaction for each batch, with the audit log.
type operation struct {
	name   string // name of the operation in audit rows
	unsure string // SQL condition that is true if the message may have been sent
	unfit  string // SQL condition that is true if the outbox would refuse the message
	do     func(ctx context.Context, tx *sql.Tx, found []row) error
}

type row struct {
	id, position   int64
	messageID, key string
	force          int // why the row needs Plan.Force
}

const (
	noForce = iota
	forgotten
	unfit
)

func (t *table) forceColumn(op operation, c *rows.Conditions) string {
	return `CASE WHEN ` + op.unfit + ` THEN ` + strconv.Itoa(unfit) + ` WHEN ` + op.unsure + ` AND ` + t.arrived + ` < {after ` +
		c.Arg(-t.inboxRetention.Milliseconds()) + `} THEN ` + strconv.Itoa(forgotten) + ` ELSE ` + strconv.Itoa(noForce) + ` END`
}

// batchRows is small, because other transactions wait for the locks of a batch.
const batchRows = 100

func (t *table) replays(op operation) *rows.Replays {
	return rows.NewReplays(t.DB, rows.Source{
		Name: t.subject, Table: t.Table, Lease: t.replayLease, Batch: batchRows,
		Count: func(ctx context.Context, f operate.Filter, _ operate.Plan) (int, int64, error) {
			n, last, err := t.count(ctx, f)
			return min(n, cmp.Or(f.Limit, n)), last, err
		},
		Take: func(ctx context.Context, tx *sql.Tx, r *rows.Replay, n int) (int64, []int64, []int64, error) {
			f := r.Filter
			f.AfterID = max(f.AfterID, r.AfterID)
			return t.changeBatch(ctx, tx, f, op, r.Act, r.ID, r.Plan.Force, r.UntilID, n)
		},
	})
}

// failed adds the names of the type and the call to err.
func (t *table) failed(call string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %s: %w", t.in, call, err)
	}
	return err
}

func (t *table) replayIDs(ctx context.Context, act operate.Act, ids []int64, op operation) error {
	err := act.Validate()
	if err == nil {
		err = t.changeIDs(ctx, act, ids, op)
	}
	return t.failed("replay", err)
}

func (t *table) replayMatching(
	ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan, op operation,
) (r operate.Replay, err error) {
	if err = errors.Join(act.Validate(), t.CheckChange(f), rows.CheckPlan(plan)); err == nil {
		r, err = t.replays(op).Begin(ctx, act, f, plan)
	}
	return r, t.failed("replay", err)
}

func (t *table) resume(
	ctx context.Context, act operate.Act, id int64, progress func(operate.Report), op operation,
) (operate.Replay, error) {
	r, err := t.replays(op).Resume(ctx, act, id, progress)
	return r, t.failed("resume", err)
}

// changeMatching changes the rows that match f and exist when it begins, and returns their number
// even after an error.
func (t *table) changeMatching(ctx context.Context, act operate.Act, f operate.Filter, op operation) (changed int, err error) {
	if err := t.CheckChange(f); err != nil {
		return 0, err
	}
	_, last, err := t.count(ctx, f)
	if err != nil {
		return 0, err
	}
	var report operate.Report
	err = rows.EachBatch(ctx, f, operate.Plan{}, batchRows, last, &report, func(f operate.Filter, size int) (int64, operate.Report, error) {
		var (
			after int64
			ids   []int64
		)
		err := t.Write(ctx, func(tx *sql.Tx) (err error) {
			after, ids, _, err = t.changeBatch(ctx, tx, f, op, act, 0, true, last, size)
			return err
		})
		if err != nil {
			return 0, operate.Report{}, err
		}
		failpoint.Hit("dead/batch-committed")
		return cmp.Or(after, last), operate.Report{Changed: len(ids)}, nil
	})
	return report.Changed, err
}

// changeBatch returns the ID of the last row that it examined, or 0 if no row is left.
func (t *table) changeBatch(
	ctx context.Context, tx *sql.Tx, f operate.Filter, op operation, act operate.Act, replayID int64, force bool, lastID int64, size int,
) (after int64, changed, skipped []int64, err error) {
	found, err := t.lock(ctx, tx, f, op, lastID, size)
	if err != nil || len(found) == 0 {
		return 0, nil, nil, err
	}
	var chosen []row
	for _, r := range found {
		if r.force != noForce && !force {
			skipped = append(skipped, r.id)
		} else {
			chosen, changed = append(chosen, r), append(changed, r.id)
		}
	}
	return found[len(found)-1].id, changed, skipped, t.change(ctx, tx, op, act, replayID, chosen)
}

// After an error, changeIDs has changed none of the rows.
func (t *table) changeIDs(ctx context.Context, act operate.Act, ids []int64, op operation) error {
	ids, err := rows.Distinct(ids)
	if err != nil {
		return err
	}
	return t.Write(ctx, func(tx *sql.Tx) error {
		found, err := t.lock(ctx, tx, operate.Filter{IDs: ids}, op, math.MaxInt64, len(ids))
		if err != nil {
			return err
		}
		for i, id := range ids {
			if i == len(found) || found[i].id != id {
				return t.notFound(id)
			}
			switch found[i].force {
			case unfit:
				return fmt.Errorf("%s %d %w of ReplayMatching: the outbox refuses such a message", t.row, id, operate.ErrNeedsForce)
			case forgotten:
				return fmt.Errorf("%s %d %w of ReplayMatching: the message may have been sent longer ago than Config.InboxRetention",
					t.row, id, operate.ErrNeedsForce)
			}
		}
		return t.change(ctx, tx, op, act, 0, found)
	})
}

func (t *table) change(ctx context.Context, tx *sql.Tx, op operation, act operate.Act, replayID int64, found []row) error {
	if len(found) == 0 {
		return nil
	}
	if err := op.do(ctx, tx, found); err != nil {
		return err
	}
	failpoint.Hit("dead/batch-changed")
	subjects, messageIDs := make([]string, len(found)), make([]string, len(found))
	for i, r := range found {
		subjects[i], messageIDs[i] = t.subject+":"+strconv.FormatInt(r.id, 10), r.messageID
	}
	err := rows.Audit(ctx, tx, t.Dialect, act.Actor, act.Why, op.name, replayID, subjects, messageIDs)
	failpoint.Hit("dead/batch-audited")
	return err
}

// lock locks rows in ascending order of their IDs, as all operations do. So if two run at the same
// time, one waits for the other, and only one gets each row.
func (t *table) lock(ctx context.Context, tx *sql.Tx, f operate.Filter, op operation, lastID int64, limit int) (found []row, err error) {
	c := t.Where(f)
	c.Add(`id <= %s`, lastID)
	query := `SELECT id, position, message_id, COALESCE(ordering_key, ''), ` + t.forceColumn(op, c) + `
		FROM ` + t.Name + ` ` + c.Where() + ` ORDER BY id LIMIT ` + c.Arg(limit) + ` {for_update}`
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var r row
		err := scan(&r.id, &r.position, &r.messageID, &r.key, &r.force)
		found = append(found, r)
		return err
	}, t.SQL(query), c.Args...)
	return found, err
}

// unknown is an SQL expression that is true if the message may have been sent before.
func (t *table) copyToOutbox(ctx context.Context, tx *sql.Tx, unknown string, found []row) ([]int64, error) {
	ids, slots := make([]int64, len(found)), make([]int64, len(found))
	for i, r := range found {
		ids[i], slots[i] = r.id, int64(outboxrow.SlotOf(r.messageID, r.key))
	}
	positions, err := rows.IDs(ctx, tx, t.SQL(`INSERT INTO {outbox} (message_id, topic, ordering_key, slot, payload, metadata, unknown)
		SELECT a.message_id, a.topic, a.ordering_key, c.slot, a.payload, a.metadata, `+unknown+`
		FROM `+t.Name+` AS a JOIN `+t.Dialect.Columns("id bigint", "slot smallint")+` ON c.id = a.id
		ORDER BY a.id
		RETURNING position`), t.List(ids), t.List(slots))
	if err == nil && len(positions) != len(found) {
		err = t.Unchanged("outbox", fmt.Sprintf("%d rows were inserted, not %d", len(positions), len(found)))
	}
	slices.Sort(positions) // the database assigns positions in the order of ids, but returns them in any order
	return positions, err
}

func (t *table) remove(ctx context.Context, tx *sql.Tx, found []row) error {
	ids := make([]int64, len(found))
	for i, r := range found {
		ids[i] = r.id
	}
	query := t.SQL(`DELETE FROM ` + t.Name + ` WHERE id IN {list $1 bigint}`)
	removed, err := dialect.Affected(tx.ExecContext(ctx, query, t.List(ids)))
	if err == nil && removed < int64(len(ids)) { // this transaction has locked the rows
		err = dialect.Ignored(t.SQL(t.Name), fmt.Sprintf("%d of %d rows were not deleted", int64(len(ids))-removed, len(ids)))
	}
	return err
}
