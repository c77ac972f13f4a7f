package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Note is the text that a person has written about a failure group.
type Note struct {
	Text  string
	Actor string
	At    time.Time
}

// noteSubject is the beginning of the subject that a note has in the audit log.
const noteSubject = "group:"

// Note stores act.Why as a note on the failure group with this fingerprint. People who
// look at the group later see the note. The new note replaces the previous note. If
// act.Why is empty, the note is removed. Notes are lines of the audit log, so the log
// also contains the earlier notes. The group need not have entries: the note is then
// shown at the next failure with the same cause.
func (q *Quarantine) Note(ctx context.Context, act Act, fingerprint string) error {
	err := act.Validate()
	if fingerprint == "" {
		err = errors.Join(err, errors.New("fingerprint is empty: name the failure group"))
	}
	if err == nil {
		err = q.table.dialect.Write(ctx, q.table.db, func(tx *sql.Tx) error {
			return q.table.recordOn(ctx, tx, act, "note", noteSubject+fingerprint, "", "")
		})
	}
	if err != nil {
		return fmt.Errorf("poison: note: %w", err)
	}
	return nil
}

// Notes returns the notes on failure groups, by their fingerprints. The map contains no
// entry for a group without a note.
func (q *Quarantine) Notes(ctx context.Context, fingerprints ...string) (map[string]Note, error) {
	d := q.table.dialect
	subjects := make([]string, len(fingerprints))
	for i, f := range fingerprints {
		subjects[i] = noteSubject + f
	}
	var notes map[string]Note
	err := d.Read(ctx, q.table.db, func(tx *sql.Tx) error {
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
		}, d.SQL(`SELECT subject, why, actor, {millis at} FROM {audit}
			WHERE id IN (SELECT MAX(id) FROM {audit} WHERE action = 'note' AND subject {among $1 text} GROUP BY subject)`),
			d.Strings(subjects))
	})
	if err != nil {
		return nil, fmt.Errorf("poison: notes: %w", err)
	}
	return notes, nil
}
