package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// fingerprint is an SQL expression for Group.Fingerprint.
const fingerprint = `reason || ': ' || last_error`

// groupedLetters is how many of the letters that match Groups looks at.
const groupedLetters = 10_000

// Groups returns the letters that match, grouped by reason and error, in
// ascending order of Fingerprint. Filter.Limit and Filter.AfterGroup count
// groups.
//
// Groups looks at the latest 10,000 letters that match, so that it is quick with a
// million of them. If there are more, every group has Group.More, and a group without any
// of the latest letters is missing. [Letters.Count] and [Letters.DryRun] count all.
func (l *Letters) Groups(ctx context.Context, f Filter) ([]Group, error) {
	groups, err := l.groups(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("deadletter: groups: %w", err)
	}
	return groups, nil
}

func (l *Letters) groups(ctx context.Context, f Filter) ([]Group, error) {
	if err := l.table.validateGroups(f); err != nil {
		return nil, err
	}
	c := l.table.conditions(f)
	where, from := c.Where(), `{outbox_dead}`
	more, err := l.table.moreThan(ctx, groupedLetters, where, c.Args)
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(f.Limit, page)
	// The latest letters are grouped in one pass. All could have very many errors, so the
	// groups of the page are found first.
	var inPage string
	if more {
		from = `(SELECT * FROM {outbox_dead} ` + where + ` ORDER BY id DESC LIMIT ` + c.Arg(groupedLetters) + `) AS latest`
		inPage = fingerprint + ` > ` + c.Arg(f.AfterGroup)
	} else {
		c.Add(fingerprint+` > %s`, f.AfterGroup)
		inPage = fingerprint + ` IN (SELECT DISTINCT ` + fingerprint + ` FROM ` + from + ` ` + c.Where() + `
			ORDER BY 1 LIMIT ` + c.Arg(limit) + `)`
	}
	query := `SELECT ` + fingerprint + ` AS fingerprint, reason, last_error, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}
		FROM (SELECT reason, last_error, topic, died_at FROM ` + from + ` ` + where + `) AS matching
		WHERE ` + inPage + `
		GROUP BY reason, last_error, topic ORDER BY fingerprint, topic`
	var groups []Group
	err = l.table.read(ctx, func(tx *sql.Tx) error {
		return l.table.query(ctx, tx, query, c, func(rows *sql.Rows) error {
			var (
				g           = Group{Topics: make([]string, 1), More: more}
				first, last int64
			)
			err := rows.Scan(&g.Fingerprint, &g.Reason, &g.Error, &g.Topics[0], &g.Count, &first, &last)
			g.FirstFailedAt, g.LastFailedAt = fromMillis(first), fromMillis(last)
			switch n := len(groups); {
			case n > 0 && groups[n-1].Fingerprint == g.Fingerprint:
				addTo(&groups[n-1], g)
			case n < limit:
				groups = append(groups, g)
			}
			return err
		})
	})
	return groups, err
}

// moreThan reports whether more than n rows match.
func (t table) moreThan(ctx context.Context, n int, where string, args []any) (more bool, err error) {
	query := t.dialect.SQL(`SELECT id FROM ` + t.name + ` ` + where + ` ORDER BY id DESC LIMIT 1 OFFSET ` + strconv.Itoa(n))
	err = t.read(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, query, args...).Scan(new(int64))
		more = err == nil
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return more, err
}

// addTo adds other letters of the group to g.
func addTo(g *Group, other Group) {
	g.Count += other.Count
	for _, topic := range other.Topics {
		if i, found := slices.BinarySearch(g.Topics, topic); !found {
			g.Topics = slices.Insert(g.Topics, i, topic)
		}
	}
	if other.FirstFailedAt.Before(g.FirstFailedAt) {
		g.FirstFailedAt = other.FirstFailedAt
	}
	if other.LastFailedAt.After(g.LastFailedAt) {
		g.LastFailedAt = other.LastFailedAt
	}
	g.Skipped = append(g.Skipped, other.Skipped...)
}
