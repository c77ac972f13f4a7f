package quarantine

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Groups returns the messages in quarantine that match f, grouped by fingerprint and in that order.
// Limit and AfterGroup of the Filter apply to groups.
//
// With no condition but Fingerprint, Groups counts only the latest entries of each group, so it
// takes as long with a million as with a few: at most 10,000 if the page has one group, 2,000 of
// each for up to five groups, 500 for up to 20, and 100 for more. Group.More says that there are
// more.
//
// With other conditions, Groups reads only the latest 10,000 entries that match, or with several
// that match the rarest one. If more may match, GroupPage.Partial and Group.More are set, and
// groups with only older entries are missing. [Entries.DryRun] counts all entries.
func (q *Entries) Groups(ctx context.Context, f operate.Filter) (p operate.GroupPage, err error) {
	t := q.table
	if wholeGroups(f) {
		if err = t.CheckGroups(f); err == nil {
			p.Groups, err = t.wholeGroups(ctx, f)
		}
	} else {
		p, err = t.Groups(ctx, f, "error", func(tx *sql.Tx, w rows.Window) ([]rows.Group, error) {
			return t.partsIn(ctx, tx, `(SELECT fingerprint, consumer, topic, reason, error_type, id, first_failed_at, last_failed_at
				FROM `+w.From()+` ORDER BY id DESC LIMIT `+strconv.Itoa(rows.GroupedRows)+`) AS latest`, w.Args)
		})
	}
	if err != nil {
		return operate.GroupPage{}, fmt.Errorf("quarantine: groups: %w", err)
	}
	return p, nil
}

// DryRun returns all groups of the entries that ReplayMatching would replay with the same Filter
// and Plan. With the zero Plan, DiscardMatching would discard the same entries.
func (q *Entries) DryRun(ctx context.Context, f operate.Filter, plan operate.Plan) ([]operate.Group, error) {
	if err := errors.Join(q.table.CheckChange(f), plan.Validate()); err != nil {
		return nil, fmt.Errorf("quarantine: dry run: %w", err)
	}
	t := q.table
	where := t.where(f, replayStates(plan, f)...)
	var groups []operate.Group
	err := t.Look(ctx, func(tx *sql.Tx) (err error) {
		groups, err = t.groupsIn(ctx, tx, `(SELECT * FROM {parked} WHERE `+where.String()+` ORDER BY id LIMIT `+where.Arg(limit(f))+`) AS chosen`,
			where.Args)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine: dry run: %w", err)
	}
	return groups, nil
}

func (t *table) groupsIn(ctx context.Context, tx *sql.Tx, from string, args []any) ([]operate.Group, error) {
	groups, err := t.partsIn(ctx, tx, from, args)
	if err != nil {
		return nil, err
	}
	return t.Described(ctx, tx, groups, "error")
}

func (t *table) partsIn(ctx context.Context, tx *sql.Tx, from string, args []any) (groups []rows.Group, err error) {
	query := t.SQL(`
		SELECT fingerprint, consumer, topic, MIN(reason), MIN(error_type), COUNT(*), MAX(id),
		       {millis MIN(first_failed_at)}, {millis MAX(last_failed_at)}
		FROM ` + from + `
		GROUP BY fingerprint, consumer, topic ORDER BY fingerprint, consumer, topic`)
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		g := rows.Group{Group: operate.Group{Consumers: make([]string, 1), Topics: make([]string, 1)}}
		var first, last sql.NullInt64
		err := scan(&g.Fingerprint, &g.Consumers[0], &g.Topics[0], &g.Reason, &g.ErrorType, &g.Count, &g.LastID, &first, &last)
		g.FirstFailedAt, g.LastFailedAt = rows.Time(first), rows.Time(last)
		groups = rows.AddGroup(groups, g)
		return err
	}, query, args...)
	return groups, err
}

// wholeGroups reports whether no condition could exclude some entries of a group. An index has the
// entries in the order of fingerprints and IDs.
func wholeGroups(f operate.Filter) bool {
	return f.IDs == nil && f.AfterID == 0 && f.UntilID == 0 && f.FailedAfter.IsZero() && f.FailedBefore.IsZero() &&
		f.Consumer+f.Topic+f.MessageID+f.Tenant+f.AggregateType+f.AggregateID+f.EventType+f.Reason+f.ErrorType == ""
}

// countsOf returns how many entries of each group are counted, about 10,000 for a page.
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

// wholeGroups reads one row for each fingerprint, and then the latest entries of each group.
func (t *table) wholeGroups(ctx context.Context, f operate.Filter) (found []operate.Group, err error) {
	err = t.Look(ctx, func(tx *sql.Tx) error {
		found = nil
		prints, err := t.fingerprints(ctx, tx, f)
		bound := countsOf(len(prints))
		for part := range slices.Chunk(prints, rows.PageRows) { // SQLite combines at most 500 queries
			groups, partErr := t.latestOf(ctx, tx, part, bound)
			found, err = append(found, groups...), errors.Join(err, partErr)
		}
		return err
	})
	return found, err
}

// The query jumps in the index from one fingerprint to the next. DISTINCT would read all entries.
func (t *table) fingerprints(ctx context.Context, tx *sql.Tx, f operate.Filter) (prints []string, err error) {
	switch {
	case f.Fingerprint != "" && f.Fingerprint <= f.AfterGroup:
		return nil, nil
	case f.Fingerprint != "":
		return []string{f.Fingerprint}, nil
	}
	next := `(SELECT MIN(fingerprint) FROM {parked} WHERE state = '` + parkedrows.Quarantined + `' AND fingerprint > `
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var text string
		err := scan(&text)
		prints = append(prints, text)
		return err
	}, t.SQL(`
		WITH RECURSIVE steps (print) AS (
			SELECT `+next+`$1)
			UNION ALL
			SELECT `+next+`print) FROM steps WHERE print IS NOT NULL
		)
		SELECT print FROM steps WHERE print IS NOT NULL LIMIT $2`), f.AfterGroup, cmp.Or(f.Limit, rows.PageRows))
	return prints, err
}

// latestOf counts at most bound of the latest entries of each group.
func (t *table) latestOf(ctx context.Context, tx *sql.Tx, prints []string, bound int) ([]operate.Group, error) {
	from, args := inGroups(`fingerprint, consumer, topic, reason, error_type, id, first_failed_at, last_failed_at`, prints,
		`ORDER BY id DESC LIMIT $1`, bound+1)
	groups, err := t.groupsIn(ctx, tx, `(`+from+`) AS latest`, args)
	if err != nil {
		return nil, err
	}
	more, byPrint := []string{}, map[string]*operate.Group{}
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
		if g := byPrint[text]; first.Valid && rows.Time(first).Before(g.FirstFailedAt) {
			g.FirstFailedAt = rows.Time(first)
		}
		return err
	}, t.SQL(from), args...)
}

// Each part of the query ends with order, an ORDER BY and LIMIT, for which $1 is the limit.
func inGroups(columns string, prints []string, order string, limit int) (query string, args []any) {
	args = []any{limit}
	var parts []string
	for _, text := range prints {
		args = append(args, text)
		parts = append(parts, fmt.Sprintf(`SELECT * FROM (SELECT %s FROM {parked} WHERE state = '%s' AND fingerprint = $%d %s) AS part`,
			columns, parkedrows.Quarantined, len(args), order))
	}
	return strings.Join(parts, ` UNION ALL `), args
}
