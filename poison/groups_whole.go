package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// wholeGroups reports whether the Filter selects whole groups. This is true if the
// Filter has no condition that could exclude some entries of a group. An index finds
// such groups, because it contains all entries in the order of fingerprints and IDs.
func (f Filter) wholeGroups() bool {
	return f.IDs == nil && f.AfterID == 0 && f.FailedAfter.IsZero() && f.FailedBefore.IsZero() &&
		f.Consumer+f.Topic+f.MessageID+f.Tenant+f.AggregateType+f.AggregateID+f.EventType+f.Reason+f.ErrorType == ""
}

// countsOf returns the maximum number of entries that are counted for each group of a
// page. If a page has more groups, this maximum is lower, so that the whole page counts
// no more than about 10,000 entries.
func countsOf(groups int) int {
	switch {
	case groups <= 1:
		return 10_000
	case groups <= 5:
		return 2_000
	case groups <= 20:
		return 500
	default:
		return 100
	}
}

// wholeGroups returns groups, and reads a limited number of rows: one row for each
// fingerprint, and then the latest entries of each group.
func (t *table) wholeGroups(ctx context.Context, f Filter) (found []Group, err error) {
	err = t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
		found = nil
		prints, err := t.fingerprints(ctx, tx, f)
		bound := countsOf(len(prints))
		for part := range slices.Chunk(prints, pageSize) { // SQLite combines at most 500 queries
			groups, partErr := t.latestOf(ctx, tx, part, bound)
			found, err = append(found, groups...), errors.Join(err, partErr)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group parked messages: %w", err)
	}
	return found, nil
}

// fingerprints returns the fingerprints of a page of groups. The query jumps in the
// index from one fingerprint to the next. A query with DISTINCT would read all entries.
func (t *table) fingerprints(ctx context.Context, tx *sql.Tx, f Filter) (prints []string, err error) {
	if f.Fingerprint != "" {
		return []string{f.Fingerprint}, nil
	}
	next := `(SELECT MIN(fingerprint) FROM {parked} WHERE state = '` + parked.Quarantined + `' AND fingerprint > `
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var text string
		err := scan(&text)
		prints = append(prints, text)
		return err
	}, t.dialect.SQL(`
		WITH RECURSIVE steps (print) AS (
			SELECT `+next+`$1)
			UNION ALL
			SELECT `+next+`print) FROM steps WHERE print IS NOT NULL
		)
		SELECT print FROM steps WHERE print IS NOT NULL LIMIT $2`), f.AfterGroup, f.limit())
	return prints, err
}

// latestOf returns groups that contain the counts of their latest entries. For each
// group, it counts at most bound entries.
func (t *table) latestOf(ctx context.Context, tx *sql.Tx, prints []string, bound int) ([]Group, error) {
	from, args := inGroups(`fingerprint, consumer, topic, reason, error_type, id, first_failed_at, last_failed_at`, prints,
		`ORDER BY id DESC LIMIT $1`, bound+1)
	groups, err := t.groupsIn(ctx, tx, `(`+from+`) AS latest`, args)
	if err != nil {
		return nil, err
	}
	more, byPrint := []string{}, map[string]*Group{}
	for i := range groups {
		if g := &groups[i]; g.Count > bound {
			g.Count, g.More = bound, true
			more, byPrint[g.Fingerprint] = append(more, g.Fingerprint), g
		}
	}
	if len(more) == 0 {
		return groups, nil
	}
	// Most likely, the first entry has the first failure.
	from, args = inGroups(`fingerprint, {millis first_failed_at}`, more, `ORDER BY id LIMIT $1`, 1)
	return groups, dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			text  string
			first sql.NullInt64
		)
		err := scan(&text, &first)
		if g := byPrint[text]; first.Valid && timeOf(first).Before(g.FirstFailedAt) {
			g.FirstFailedAt = timeOf(first)
		}
		return err
	}, t.dialect.SQL(from), args...)
}

// inGroups combines the queries of all groups into one query. The parameter order
// contains the ORDER BY and LIMIT clauses at the end of each part. The SQL parameter $1
// is the limit.
func inGroups(columns string, prints []string, order string, limit int) (query string, args []any) {
	args = []any{limit}
	var parts []string
	for _, text := range prints {
		args = append(args, text)
		parts = append(parts, fmt.Sprintf(`SELECT * FROM (SELECT %s FROM {parked} WHERE state = '%s' AND fingerprint = $%d %s) AS part`,
			columns, parked.Quarantined, len(args), order))
	}
	return strings.Join(parts, ` UNION ALL `), args
}
