package reconcile

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/schema"
)

// ErrNotKept means that the archive does not contain the report, or no longer does.
var ErrNotKept = errors.New("no such report")

const (
	keptReports = 100

	// keptMessages limits the missing messages and the phantoms of a report.
	keptMessages = 1000

	listedReports = 20
)

// Archive keeps reports in a table for a later look, for example in package console. Use the
// sender's database: its sent log contains the missing messages.
type Archive struct{ side }

// Kept is a report in an archive.
type Kept struct {
	ID int64
	At time.Time // time at which the report was added to the archive

	// Report has at most 1,000 missing messages and phantoms, Missing and Phantoms their numbers.
	Report            Report
	Missing, Phantoms int
}

// NewArchive returns the archive in db. If config is invalid, the error names the invalid value.
// The tables must exist, see schema.Up, and the database user needs the right to operate them, see
// schema.Roles.
func NewArchive(db *sql.DB, config schema.Config) (*Archive, error) {
	config = config.WithDefaults()
	s, err := newSide(db, config, config.Validate())
	if err != nil {
		return nil, err
	}
	return &Archive{s}, nil
}

// Keep adds reports, and removes all but the latest 100 of each consumer.
func (a *Archive) Keep(ctx context.Context, reports ...Report) (err error) {
	defer wrap("keep", &err)
	return a.dialect.Write(ctx, a.db, func(tx *sql.Tx) error {
		for _, r := range reports {
			missing, phantoms := len(r.Missing), len(r.Phantoms)
			r.Missing, r.Phantoms = r.Missing[:min(missing, keptMessages)], r.Phantoms[:min(phantoms, keptMessages)]
			text, err := json.Marshal(r)
			if err == nil {
				_, err = tx.ExecContext(ctx, a.dialect.SQL(`INSERT INTO {reconciliations} (consumer, missing, phantoms, report)
					VALUES ($1, $2, $3, $4)`), r.Consumer, missing, phantoms, string(text))
			}
			if err == nil {
				_, err = tx.ExecContext(ctx, a.dialect.SQL(`DELETE FROM {reconciliations} WHERE consumer = $1 AND id <= (
					SELECT id FROM {reconciliations} WHERE consumer = $1 ORDER BY id DESC LIMIT 1 OFFSET $2)`), r.Consumer, keptReports)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// List returns up to 20 reports, the latest first. If before is not 0, their IDs are lower.
func (a *Archive) List(ctx context.Context, before int64) (all []Kept, err error) {
	defer wrap("list", &err)
	return a.read(ctx, `WHERE id < $1 OR $1 = 0 ORDER BY id DESC LIMIT $2`, before, listedReports)
}

// Get returns a report, or an error that wraps [ErrNotKept].
func (a *Archive) Get(ctx context.Context, id int64) (k Kept, err error) {
	defer wrap("get", &err)
	all, err := a.read(ctx, `WHERE id = $1`, id)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w: %d", ErrNotKept, id)
	}
	return append(all, k)[0], err
}

func (a *Archive) read(ctx context.Context, which string, args ...any) (all []Kept, err error) {
	err = a.rows(ctx, func(scan func(dest ...any) error) error {
		var (
			k    Kept
			at   int64
			text []byte
		)
		if err := scan(&k.ID, &at, &k.Missing, &k.Phantoms, &text); err != nil {
			return err
		}
		k.At = fromMillis(at)
		err := json.Unmarshal(text, &k.Report)
		all = append(all, k)
		return err
	}, a.dialect.SQL(`SELECT id, {millis at}, missing, phantoms, report FROM {reconciliations} `+which), args...)
	return all, err
}
