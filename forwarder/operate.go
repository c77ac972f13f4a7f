package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/slot"
)

// Act says who does something and why: it is kept with what was done, in the
// table of audits.
type Act struct {
	// Actor is required.
	Actor string

	// Why is required where a message may be lost: to discard.
	Why string
}

func (a Act) validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty")
	}
	return nil
}

// Plan is how to put many messages into the outbox again. With its zero value
// all are put back as fast as the database takes them.
type Plan struct {
	// Rate is how many messages to put back each second at most. Defaults to no
	// limit.
	Rate int

	// Remembered is how long consumers remember the ids of messages: the
	// shortest retention of their inboxes. A message that may have been sent
	// longer ago would be handled a second time, and is skipped. Defaults to 7
	// days.
	Remembered time.Duration

	// Force has those put back as well, and those that the outbox would refuse:
	// [ReasonMalformed] and [ReasonInvalid].
	Force bool

	// Progress is called after each batch, with how far it is. It must return
	// soon. Defaults to nothing.
	Progress func(Report)
}

// Report says how many messages were put back, or would be.
type Report struct {
	// Total is how many rows matched when it began, and at most the Filter's
	// Limit.
	Total int

	// Replayed is how many of them were put back.
	Replayed int

	// Skipped are the IDs of those that were left because they need Plan.Force,
	// in ascending order.
	Skipped []int64
}

func (p Plan) withDefaults() Plan {
	p.Remembered = cmp.Or(p.Remembered, 7*24*time.Hour)
	return p
}

func (p Plan) validate() error {
	var errs []error
	if p.Rate < 0 {
		errs = append(errs, fmt.Errorf("Plan.Rate is %d: negative", p.Rate))
	}
	if p.Remembered < 0 {
		errs = append(errs, fmt.Errorf("Plan.Remembered is %v: negative", p.Remembered))
	}
	return errors.Join(errs...)
}

// operation is something that is done to all rows that match, a batch at a
// time, each in a transaction with its audit rows.
type operation struct {
	Plan

	act    *Act   // nil: a dry run
	name   string // in audit rows
	unsure string // the condition under which a row may have been sent
	unfit  string // the condition under which the outbox would refuse it
	do     func(ctx context.Context, tx *sql.Tx, entries []entry) error
}

func (op operation) by(act Act) operation {
	op.act = &act
	return op
}

func (op operation) dry() operation {
	op.Rate = 0
	return op
}

// entry is a row that an operation is about.
type entry struct {
	id, position   int64
	messageID, key string
	needsForce     bool // unfit, or it may have been sent and consumers do not remember
}

// batchRows bounds one transaction of an operation: others wait for its locks.
const batchRows = 100

// run returns what was done, also with an error.
func (a archive) run(ctx context.Context, f Filter, op operation) (Report, error) {
	errs := []error{a.validateAct(f), op.validate()}
	if op.act != nil {
		errs = append(errs, op.act.validate())
	}
	if err := errors.Join(errs...); err != nil {
		return Report{}, err
	}

	var report Report
	n, last, err := a.matching(ctx, f)
	report.Total = n
	if f.Limit > 0 {
		report.Total = min(n, f.Limit)
	}
	for after := f.AfterID; err == nil && after < last && (f.Limit == 0 || report.Replayed < f.Limit); {
		began, done := time.Now(), report.Replayed
		if after, err = a.batch(ctx, f, op, after, last, &report); err != nil {
			break
		}
		if op.Progress != nil {
			op.Progress(report)
		}
		if after < last {
			err = op.pause(ctx, began, report.Replayed-done)
		}
	}
	return report, err
}

// pause waits for as long as the rate says that so many messages take.
func (op operation) pause(ctx context.Context, began time.Time, done int) error {
	if op.Rate == 0 {
		return ctx.Err()
	}
	wait := time.NewTimer(time.Until(began.Add(time.Duration(done) * time.Second / time.Duration(op.Rate))))
	defer wait.Stop()
	select {
	case <-wait.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// size is how many rows the next batch may have: with a rate, a quarter of a
// second's.
func (op operation) size(limit, done int) int {
	size := batchRows
	if op.Rate > 0 {
		size = max(1, min(size, op.Rate/4))
	}
	if limit > 0 {
		size = min(size, limit-done)
	}
	return size
}

// batch does the next rows after an id, and returns the last one's, or last if
// there are no more.
func (a archive) batch(ctx context.Context, f Filter, op operation, after, last int64, report *Report) (int64, error) {
	var (
		wanted  []entry
		skipped []int64
	)
	transaction := a.store.write
	if op.act == nil {
		transaction = a.store.read
	}
	upTo := last
	err := transaction(ctx, func(tx *sql.Tx) error {
		entries, err := a.entries(ctx, tx, f, op, after, last, op.size(f.Limit, report.Replayed))
		if err != nil || len(entries) == 0 {
			return err
		}
		upTo = entries[len(entries)-1].id
		for _, e := range entries {
			if e.needsForce && !op.Force {
				skipped = append(skipped, e.id)
			} else {
				wanted = append(wanted, e)
			}
		}
		if op.act == nil || len(wanted) == 0 {
			return nil
		}
		if err := op.do(ctx, tx, wanted); err != nil {
			return err
		}
		failpoint.Hit("forwarder/operated")
		subjects, ids := make([]string, len(wanted)), make([]string, len(wanted))
		for i, e := range wanted {
			subjects[i], ids[i] = a.subject+":"+strconv.FormatInt(e.id, 10), e.messageID
		}
		err = a.store.audit(ctx, tx, *op.act, op.name, subjects, ids)
		failpoint.Hit("forwarder/operation-audited")
		return err
	})
	if err != nil {
		return after, err
	}
	failpoint.Hit("forwarder/batch-operated")
	report.Replayed += len(wanted)
	report.Skipped = append(report.Skipped, skipped...)
	return upTo, nil
}

// entries returns the next rows that match. Their locks are taken in the order
// of ids, and two operations at the same time get each row once.
func (a archive) entries(ctx context.Context, tx *sql.Tx, f Filter, op operation, after, last int64, most int) ([]entry, error) {
	f.AfterID = after
	c := a.conditions(f)
	c.add(`id <= %s`, last)
	lock := ` {for_update}`
	if op.act == nil {
		lock = ``
	}
	needsForce := op.unfit + ` OR ` + op.unsure + ` AND ` + a.at + ` < {after ` + c.arg(-op.Remembered.Milliseconds()) + `}`
	query := `SELECT id, position, message_id, COALESCE(ordering_key, ''), CASE WHEN ` + needsForce + ` THEN 1 ELSE 0 END
		FROM ` + a.table + ` ` + c.where() + ` ORDER BY id LIMIT ` + c.arg(most) + lock
	var entries []entry
	err := a.query(ctx, tx, query, c, func(rows *sql.Rows) error {
		var e entry
		err := rows.Scan(&e.id, &e.position, &e.messageID, &e.key, &e.needsForce)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// audit records an act on each of the subjects.
func (s *store) audit(ctx context.Context, tx *sql.Tx, act Act, name string, subjects, messageIDs []string) error {
	const mostName, mostText = 255, 4096
	_, err := tx.ExecContext(ctx, s.dialect.SQL(`
		INSERT INTO {audit} (actor, action, subject, message_id, why)
		SELECT $3, $4, c.subject, c.message_id, $5 FROM `+columns(s.dialect, "subject text", "message_id text")),
		s.dialect.Strings(subjects), s.dialect.Strings(messageIDs),
		parked.Clean(act.Actor, mostName), name, parked.Clean(act.Why, mostText))
	return err
}

// copyBack inserts copies of an archive's rows into the outbox, in the order of
// entries, and returns their positions.
func (a archive) copyBack(ctx context.Context, tx *sql.Tx, unknown string, entries []entry) ([]int64, error) {
	ids, slots := make([]int64, len(entries)), make([]int64, len(entries))
	for i, e := range entries {
		ids[i], slots[i] = e.id, int64(slot.Of(e.messageID, e.key))
	}
	d := a.store.dialect
	query := `INSERT INTO {outbox} (message_id, topic, ordering_key, slot, payload, metadata, unknown)
		SELECT a.message_id, a.topic, a.ordering_key, c.slot, a.payload, a.metadata, ` + unknown + `
		FROM ` + a.table + ` AS a JOIN ` + columns(d, "id bigint", "slot smallint") + ` ON c.id = a.id
		ORDER BY a.id
		RETURNING position`
	var positions []int64
	err := a.query(ctx, tx, query, &conditions{args: []any{d.List(ids), d.List(slots)}}, func(rows *sql.Rows) error {
		var position int64
		err := rows.Scan(&position)
		positions = append(positions, position)
		return err
	})
	if err == nil && len(positions) != len(entries) {
		err = fmt.Errorf("%d rows were inserted, not %d", len(positions), len(entries))
	}
	slices.Sort(positions) // they were given out in the order of ids, and returned in any
	return positions, err
}

// remove deletes rows from the archive.
func (a archive) remove(ctx context.Context, tx *sql.Tx, entries []entry) error {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.id
	}
	_, err := tx.ExecContext(ctx, a.store.dialect.SQL(`DELETE FROM `+a.table+` WHERE id IN {list $1 bigint}`),
		a.store.dialect.List(ids))
	return err
}
