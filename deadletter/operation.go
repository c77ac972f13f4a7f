package deadletter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
)

// operation is a change of rows. Each batch of rows is changed in one transaction. The
// same transaction writes the rows of the audit log.
type operation struct {
	Plan

	act    Act
	name   string // name of the operation in audit rows
	run    run    // row of once_replays, if the operation has one
	unsure string // SQL condition that is true if the message may have been sent
	unfit  string // SQL condition that is true if the outbox would refuse the message
	do     func(ctx context.Context, tx *sql.Tx, rows []row) error
}

// row is a row that an operation changes.
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

// forceColumn returns the SQL expression of row.force.
func (t table) forceColumn(op operation, c *operate.Conditions) string {
	return `CASE WHEN ` + op.unfit + ` THEN ` + strconv.Itoa(unfit) + ` WHEN ` + op.unsure + ` AND ` + t.arrived + ` < {after ` +
		c.Arg(-t.inboxRetention.Milliseconds()) + `} THEN ` + strconv.Itoa(forgotten) + ` ELSE ` + strconv.Itoa(noForce) + ` END`
}

// lease returns how long a process owns a replay after each batch, in milliseconds. A
// replay with a rate waits between its batches, and must not lose its lease during the
// wait.
func (t table) lease(plan Plan) int64 {
	lease := t.replayLease
	if plan.Rate > 0 {
		lease += operate.LongestWait
	}
	return lease.Milliseconds()
}

// batchRows is the maximum number of rows that one transaction changes. It is small
// because other transactions wait for the locks.
const batchRows = 100

// changeMatching changes all rows that match f and exist when it begins. The Report
// contains the number of changed rows, even after an error.
func (t table) changeMatching(ctx context.Context, f Filter, op operation) (Report, error) {
	if err := errors.Join(t.validateChange(f), validate(op.Plan)); err != nil {
		return Report{}, err
	}
	var report Report
	n, lastID, err := t.count(ctx, f)
	if err != nil {
		return Report{}, err
	}
	report.Total = n
	if f.Limit > 0 {
		report.Total = min(n, f.Limit)
	}
	return t.changeUntil(ctx, f, op, lastID, report)
}

// changeUntil changes the rows that match f and whose ID is at most lastID. It adds the
// changed rows to the report.
func (t table) changeUntil(ctx context.Context, f Filter, op operation, lastID int64, report Report) (Report, error) {
	var err error
	rate := operate.NewRate(op.Rate)
	for after := f.AfterID; after < lastID && (f.Limit == 0 || report.Replayed < f.Limit); {
		if err = rate.Wait(ctx, batchRows); err != nil {
			break
		}
		size, before := rate.Room(batchRows), report.Replayed
		if f.Limit > 0 {
			size = min(size, f.Limit-before)
		}
		f.AfterID = after
		if after, err = t.changeBatch(ctx, f, op, lastID, size, &report); err != nil {
			break
		}
		rate.Took(report.Replayed - before)
		if op.Progress != nil {
			op.Progress(report)
		}
	}
	return report, err
}

// changeBatch changes at most size rows whose ID is above f.AfterID. It returns the ID
// of the last row that it examined, or lastID if no row is left.
func (t table) changeBatch(ctx context.Context, f Filter, op operation, lastID int64, size int, report *Report) (int64, error) {
	var (
		chosen  []row
		skipped []int64
		upTo    int64
	)
	err := t.write(ctx, func(tx *sql.Tx) error {
		chosen, skipped, upTo = nil, nil, lastID
		rows, err := t.rows(ctx, tx, f, op, lastID, size)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return t.advance(ctx, tx, op.run, upTo, 0)
		}
		upTo = rows[len(rows)-1].id
		for _, r := range rows {
			if r.force != noForce && !op.Force {
				skipped = append(skipped, r.id)
			} else {
				chosen = append(chosen, r)
			}
		}
		if err := t.change(ctx, tx, op, chosen); err != nil {
			return err
		}
		return t.advance(ctx, tx, op.run, upTo, len(chosen))
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("deadletter/batch-committed")
	report.Replayed += len(chosen)
	report.Skipped = append(report.Skipped, skipped...)
	return upTo, nil
}

// changeIDs changes the rows with these IDs in one transaction. If it returns an error,
// it has changed none of them.
func (t table) changeIDs(ctx context.Context, ids []int64, op operation) error {
	ids, err := operate.Distinct(ids)
	if err != nil {
		return err
	}
	return t.write(ctx, func(tx *sql.Tx) error {
		rows, err := t.rows(ctx, tx, Filter{IDs: ids}, op, math.MaxInt64, len(ids))
		if err != nil {
			return err
		}
		for i, id := range ids {
			if i == len(rows) || rows[i].id != id {
				return t.notFound(id)
			}
			switch rows[i].force {
			case unfit:
				return fmt.Errorf("%s %d: %w: the outbox refuses such a message", t.row, id, ErrNeedsForce)
			case forgotten:
				return fmt.Errorf("%s %d: %w: the message may have been sent longer ago than Config.InboxRetention", t.row, id, ErrNeedsForce)
			}
		}
		return t.change(ctx, tx, op, rows)
	})
}

func (t table) change(ctx context.Context, tx *sql.Tx, op operation, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	if err := op.do(ctx, tx, rows); err != nil {
		return err
	}
	failpoint.Hit("deadletter/batch-changed")
	subjects, messageIDs := make([]string, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		subjects[i], messageIDs[i] = t.subject+":"+strconv.FormatInt(r.id, 10), r.messageID
	}
	err := t.audit(ctx, tx, op.act, op.name, op.run.id, subjects, messageIDs)
	failpoint.Hit("deadletter/batch-audited")
	return err
}

// rows locks and returns rows that match f. It returns no more rows than limit, and
// only rows whose ID is at most lastID. The rows are in ascending order of their IDs.
// All operations lock rows in this order. So if two operations run at the same time,
// one waits for the other, and only one of them gets each row.
func (t table) rows(ctx context.Context, tx *sql.Tx, f Filter, op operation, lastID int64, limit int) ([]row, error) {
	c := t.conditions(f)
	c.Add(`id <= %s`, lastID)
	query := `SELECT id, position, message_id, COALESCE(ordering_key, ''), ` + t.forceColumn(op, c) + `
		FROM ` + t.name + ` ` + c.Where() + ` ORDER BY id LIMIT ` + c.Arg(limit) + ` {for_update}`
	var rows []row
	err := t.query(ctx, tx, query, c, func(found *sql.Rows) error {
		var r row
		err := found.Scan(&r.id, &r.position, &r.messageID, &r.key, &r.force)
		rows = append(rows, r)
		return err
	})
	return rows, err
}

// audit writes one row to the audit log for each subject.
func (t table) audit(ctx context.Context, tx *sql.Tx, act Act, name string, replayID int64, subjects, messageIDs []string) error {
	return operate.Audit(ctx, tx, t.dialect, act.Actor, act.Why, name, replayID, subjects, messageIDs)
}
