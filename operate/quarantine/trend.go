package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

// TrendHours is the number of hours of a [Trend].
const TrendHours = 24

// Trend contains the number of entries of a failure group for each of the last 24 hours, the oldest
// first, by their last failure.
type Trend [TrendHours]int

// Total returns the sum of all hours.
func (t Trend) Total() (n int) {
	for _, hour := range t {
		n += hour
	}
	return n
}

// Last returns the count of the latest hour.
func (t Trend) Last() int { return t[TrendHours-1] }

const trendEntries = 20_000

// Trends returns the trends of failure groups by their fingerprints, for the entries that match f,
// without Limit, AfterID and AfterGroup. Groups without a failure in the last 24 hours are left
// out. If more than 20,000 entries have failed in this time, whether they match f or not, Trends
// returns nil.
func (q *Entries) Trends(ctx context.Context, f operate.Filter, fingerprints ...string) (map[string]Trend, error) {
	f.AfterID, f.AfterGroup = 0, ""
	if err := q.table.Check(f); err != nil {
		return nil, fmt.Errorf("quarantine: trends: %w", err)
	}
	t := q.table
	// The query uses the index of failure times instead of another index.
	where := t.where(f)
	recent := `SELECT * FROM {parked} WHERE state = 'quarantined' AND last_failed_at > {after -86400000} ORDER BY last_failed_at DESC, id DESC`
	query := t.SQL(`
		SELECT fingerprint, ({clock} - {millis last_failed_at}) / 3600000, COUNT(*)
		FROM (` + recent + ` LIMIT ` + strconv.Itoa(trendEntries) + `) AS recent
		WHERE ` + where.String() + ` AND fingerprint {among ` + where.Arg(t.Strings(fingerprints)) + ` text}
		GROUP BY 1, 2`)
	more := t.SQL(`SELECT id FROM (` + recent + ` LIMIT 1 OFFSET ` + strconv.Itoa(trendEntries) + `) AS more`)
	var trends map[string]Trend
	err := t.Look(ctx, func(tx *sql.Tx) error {
		trends = nil
		if err := t.InOrder(ctx, tx); err != nil {
			return err
		}
		var id int64
		if err := tx.QueryRowContext(ctx, more).Scan(&id); !errors.Is(err, sql.ErrNoRows) {
			return err // nil if there are more
		}
		trends = map[string]Trend{}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				fingerprint string
				ago         int64
				n           int
			)
			err := scan(&fingerprint, &ago, &n)
			trend := trends[fingerprint]
			trend[TrendHours-1-min(max(0, ago), TrendHours-1)] += n
			trends[fingerprint] = trend
			return err
		}, query, where.Args...)
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine: trends: %w", err)
	}
	return trends, nil
}

// Note is the text that a person has written about a failure group.
type Note struct {
	Text  string
	Actor string
	At    time.Time
}

const noteSubject = "group:"

// Note stores act.Why as a note on the failure group with this fingerprint, in place of the
// previous one, or removes it if act.Why is empty. The audit log keeps all notes. The group need
// not have entries: the note is shown at the next failure with this cause.
func (q *Entries) Note(ctx context.Context, act operate.Act, fingerprint string) error {
	err := act.Validate()
	if fingerprint == "" {
		err = errors.Join(err, errors.New("fingerprint is empty: name the failure group"))
	}
	if err == nil {
		err = q.table.Write(ctx, func(tx *sql.Tx) error {
			return q.table.recordOn(ctx, tx, act, "note", noteSubject+fingerprint, "", "")
		})
	}
	if err != nil {
		return fmt.Errorf("quarantine: note: %w", err)
	}
	return nil
}

// Notes returns the notes on failure groups by their fingerprints.
func (q *Entries) Notes(ctx context.Context, fingerprints ...string) (map[string]Note, error) {
	t := q.table
	subjects := make([]string, len(fingerprints))
	for i, f := range fingerprints {
		subjects[i] = noteSubject + f
	}
	var notes map[string]Note
	err := t.Look(ctx, func(tx *sql.Tx) error {
		notes = map[string]Note{}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				subject string
				n       Note
				millis  int64
			)
			err := scan(&subject, &n.Text, &n.Actor, &millis)
			n.At = time.UnixMilli(millis).UTC()
			if n.Text != "" {
				notes[subject[len(noteSubject):]] = n
			}
			return err
		}, t.SQL(`SELECT subject, why, actor, {millis at} FROM {audit}
			WHERE id IN (SELECT MAX(id) FROM {audit} WHERE action = 'note' AND subject {among $1 text} GROUP BY subject)`),
			t.Strings(subjects))
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine: notes: %w", err)
	}
	return notes, nil
}
