package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/schema"
)

// Letter is a dead letter: a message that the broker did not accept.
type Letter struct {
	Stored

	// Attempts is how often it was refused.
	Attempts int

	// Reason is one of the Reason constants, and Error what the publisher said
	// last.
	Reason, Error string

	// Unknown says that it may have been sent nevertheless.
	Unknown bool

	// BlocksKey says that messages of its ordering key wait for it, see
	// [BlockKey].
	BlocksKey bool

	// LastFailedAt is when it came here.
	LastFailedAt time.Time
}

// DeadLetters are the messages that were given up.
type DeadLetters struct {
	archive archive
}

// NewDeadLetters returns the dead letters in db, or an error that names the
// field of config that cannot be used. The tables must be there, see schema.Up.
func NewDeadLetters(db *sql.DB, config schema.Config) (*DeadLetters, error) {
	a, err := newArchive(db, config, archive{table: `{outbox_dead}`, subject: "dead", at: "died_at", dead: true})
	if err != nil {
		return nil, err
	}
	return &DeadLetters{a}, nil
}

// List returns the letters that match, in order of their ID and without their
// payloads.
func (d *DeadLetters) List(ctx context.Context, f Filter) ([]Letter, error) {
	letters, err := d.list(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("forwarder: dead letters: %w", err)
	}
	return letters, nil
}

// Get returns one letter with its payload, or [ErrNotFound].
func (d *DeadLetters) Get(ctx context.Context, id int64) (Letter, error) {
	letters, err := d.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(letters) == 0 {
		err = fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	if err == nil {
		err = d.archive.payload(ctx, &letters[0].Stored)
	}
	if err != nil {
		return Letter{}, fmt.Errorf("forwarder: dead letter: %w", err)
	}
	return letters[0], nil
}

// Count returns how many letters match, whatever the Filter's Limit.
func (d *DeadLetters) Count(ctx context.Context, f Filter) (int, error) {
	n, _, err := d.archive.matching(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("forwarder: dead letters: %w", err)
	}
	return n, nil
}

const letterColumns = `attempts, last_error, reason, unknown, {millis died_at},
	EXISTS (SELECT 1 FROM {blocked_keys} AS h
	        WHERE h.ordering_key = a.ordering_key AND h.position = a.position AND h.reason = '` + holdDead + `')`

func (d *DeadLetters) list(ctx context.Context, f Filter) ([]Letter, error) {
	var letters []Letter
	err := d.archive.list(ctx, f, letterColumns, func(rows *sql.Rows) error {
		var (
			l    Letter
			died int64
			err  error
		)
		l.Stored, err = scanStored(rows, &l.Attempts, &l.Error, &l.Reason, &l.Unknown, &died, &l.BlocksKey)
		l.LastFailedAt = time.UnixMilli(died).UTC()
		letters = append(letters, l)
		return err
	})
	return letters, err
}

// DryRun returns what ReplayMatching would do, and changes nothing. What
// DiscardMatching would be about is what Count says.
func (d *DeadLetters) DryRun(ctx context.Context, f Filter, plan Plan) (Report, error) {
	report, err := d.archive.run(ctx, f, d.replay(plan).dry())
	if err != nil {
		return report, fmt.Errorf("forwarder: dry run: %w", err)
	}
	return report, nil
}

// ReplayMatching puts letters back into the outbox, in order of their IDs and
// with new positions, as if they had been published now: nothing is charged to
// them. A letter leaves the table in the transaction that puts it back; if two
// replay at the same time, one of them does.
//
// A letter that holds its ordering key goes out before those that wait for it.
// Any other goes out behind what is in the outbox, also behind later messages
// of its key.
//
// What dies while this runs is left alone. When ctx ends it stops after a
// batch; the report says what was done, with any error. Of a commit whose outcome
// is unknown it knows nothing.
func (d *DeadLetters) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	report, err := d.archive.run(ctx, f, d.replay(plan).by(act))
	if err != nil {
		return report, fmt.Errorf("forwarder: replay: %w", err)
	}
	return report, nil
}

func (d *DeadLetters) replay(plan Plan) operation {
	return operation{
		Plan: plan.withDefaults(), name: "replay", do: d.putBack,
		unsure: "unknown", unfit: "reason IN ('" + ReasonMalformed + "', '" + ReasonInvalid + "')",
	}
}

func (d *DeadLetters) putBack(ctx context.Context, tx *sql.Tx, letters []entry) error {
	positions, err := d.archive.copyBack(ctx, tx, "a.unknown", letters)
	if err != nil {
		return err
	}
	failpoint.Hit("forwarder/letters-put-back")
	var (
		from, to []int64
		keys     []string
	)
	for i, l := range letters {
		if l.key != "" {
			from, to, keys = append(from, l.position), append(to, positions[i]), append(keys, l.key)
		}
	}
	// The successors lie below the head now, where they were.
	s := d.archive.store
	if _, err := tx.ExecContext(ctx, s.dialect.SQL(`
		UPDATE {blocked_keys} AS h SET position = c.new_position, reason = '`+holdReplayed+`'
		FROM `+columns(s.dialect, "old_position bigint", "ordering_key text", "new_position bigint")+`
		WHERE h.ordering_key = c.ordering_key AND h.position = c.old_position AND h.reason = '`+holdDead+`'`),
		s.dialect.List(from), s.dialect.Strings(keys), s.dialect.List(to)); err != nil {
		return err
	}
	failpoint.Hit("forwarder/holds-moved")
	return d.archive.remove(ctx, tx, letters)
}

// DiscardMatching deletes letters for good, and returns how many it were.
// Whatever waits for one that holds its ordering key is sent then. When ctx ends
// it stops after a batch: with an error, those that were counted are gone. Of a
// commit whose outcome is unknown it knows nothing.
func (d *DeadLetters) DiscardMatching(ctx context.Context, act Act, f Filter) (discarded int, err error) {
	if act.Why == "" {
		return 0, errors.New("forwarder: discard: Why is empty: say why the messages may be lost")
	}
	report, err := d.archive.run(ctx, f, operation{name: "discard", unsure: "1 = 0", unfit: "1 = 0", do: d.discard}.by(act))
	if err != nil {
		return report.Replayed, fmt.Errorf("forwarder: discard: %w", err)
	}
	return report.Replayed, nil
}

func (d *DeadLetters) discard(ctx context.Context, tx *sql.Tx, letters []entry) error {
	var (
		positions []int64
		keys      []string
	)
	for _, l := range letters {
		if l.key != "" {
			positions, keys = append(positions, l.position), append(keys, l.key)
		}
	}
	if err := d.archive.store.letGo(ctx, tx, positions, keys); err != nil {
		return err
	}
	return d.archive.remove(ctx, tx, letters)
}

// ErrNotBlocked says that no dead letter holds an ordering key.
var ErrNotBlocked = errors.New("no dead letter holds this ordering key")

// Release lets an ordering key go on whose dead letter holds it, or returns
// [ErrNotBlocked]. The letter stays where it is; replayed later, it goes out
// behind those that waited for it.
func (d *DeadLetters) Release(ctx context.Context, act Act, orderingKey string) error {
	if err := act.validate(); err != nil {
		return fmt.Errorf("forwarder: release: %w", err)
	}
	s := d.archive.store
	err := s.write(ctx, func(tx *sql.Tx) error {
		var position int64
		err := tx.QueryRowContext(ctx, s.dialect.SQL(`SELECT position FROM {blocked_keys}
			WHERE ordering_key = $1 AND reason = '`+holdDead+`' {for_update}`), orderingKey).Scan(&position)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: %q", ErrNotBlocked, orderingKey)
		}
		if err != nil {
			return err
		}
		if err := s.letGo(ctx, tx, []int64{position}, []string{orderingKey}); err != nil {
			return err
		}
		err = s.audit(ctx, tx, act, "release", []string{"key:" + orderingKey}, []string{""})
		failpoint.Hit("forwarder/key-released")
		return err
	})
	if err != nil {
		return fmt.Errorf("forwarder: release: %w", err)
	}
	return nil
}

// letGo ends the holds of dead letters.
//
// The forwarder may have read past those that wait, and would come back to them
// only at its next rescan. So the first of them becomes the head of its key,
// due now: that is found by time, not by position, and the others follow it.
func (s *store) letGo(ctx context.Context, tx *sql.Tx, positions []int64, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	held := `(h.position, h.ordering_key) IN (SELECT c.position, c.ordering_key FROM ` +
		columns(s.dialect, "position bigint", "ordering_key text") + `) AND h.reason = '` + holdDead + `'`
	if !s.dialect.SQLite() {
		// First, so that of two who do this one waits, and not each for the other.
		// The mode in which it locks the table, if it finds nothing too, tells
		// those who read, see snapshotQuery.
		if _, err := tx.ExecContext(ctx, s.dialect.SQL(`SELECT FROM {blocked_keys} AS h WHERE `+held+` ORDER BY h.ordering_key FOR UPDATE`),
			s.dialect.List(positions), s.dialect.Strings(keys)); err != nil {
			return err
		}
	}
	for _, query := range []string{
		`UPDATE {outbox} SET due_at = COALESCE(due_at, {now})
		 WHERE position IN (SELECT MIN(o.position) FROM {outbox} AS o
		                    WHERE o.ordering_key IN (SELECT h.ordering_key FROM {blocked_keys} AS h WHERE ` + held + `)
		                    GROUP BY o.ordering_key)`,
		// One that is being committed at this moment may lie below the first.
		`UPDATE {blocked_keys} AS h SET position = f.position, reason = '` + holdReleased + `',
		        successors_after = CASE WHEN f.position < h.successors_after THEN f.position ELSE h.successors_after END
		 FROM (SELECT o.ordering_key, MIN(o.position) AS position FROM {outbox} AS o
		       WHERE o.ordering_key IN {list $2 text} GROUP BY o.ordering_key) AS f
		 WHERE f.ordering_key = h.ordering_key AND ` + held,
		`DELETE FROM {blocked_keys} AS h WHERE ` + held,
	} {
		if _, err := tx.ExecContext(ctx, s.dialect.SQL(query), s.dialect.List(positions), s.dialect.Strings(keys)); err != nil {
			return err
		}
		failpoint.Hit("forwarder/letting-go")
	}
	return nil
}
