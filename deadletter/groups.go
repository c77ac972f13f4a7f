package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/operate"
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

func (l *Letters) groups(ctx context.Context, f Filter) (groups []Group, err error) {
	if err := l.table.validateGroups(f); err != nil {
		return nil, err
	}
	err = l.table.read(ctx, func(tx *sql.Tx) error {
		c, err := l.table.selected(ctx, tx, f)
		if err == nil {
			err = l.table.dialect.InOrder(ctx, tx)
		}
		if err != nil {
			return err
		}
		if groups, err = l.latestGroups(ctx, tx, c); err != nil {
			return err
		}
		letters := 0
		for _, g := range groups {
			letters += g.Count
		}
		more := letters == groupedLetters
		if more {
			if more, err = l.table.moreThan(ctx, tx, groupedLetters, c); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g Group) bool { return g.Fingerprint <= f.AfterGroup })
		slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		groups = groups[:min(len(groups), cmp.Or(f.Limit, page))]
		for i := range groups {
			groups[i].More = more
		}
		return nil
	})
	return groups, err
}

// latestGroups returns the groups among the latest letters that match.
func (l *Letters) latestGroups(ctx context.Context, tx *sql.Tx, c *operate.Conditions) (groups []Group, err error) {
	query := `SELECT ` + fingerprint + ` AS fingerprint, reason, last_error, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}
		FROM (SELECT reason, last_error, topic, died_at FROM {outbox_dead} ` + c.Where() + `
		      ORDER BY id DESC LIMIT ` + strconv.Itoa(groupedLetters) + `) AS latest
		GROUP BY reason, last_error, topic ORDER BY fingerprint, topic`
	err = l.table.query(ctx, tx, query, c, func(rows *sql.Rows) error {
		var (
			g           = Group{Topics: make([]string, 1)}
			first, last int64
		)
		err := rows.Scan(&g.Fingerprint, &g.Reason, &g.Error, &g.Topics[0], &g.Count, &first, &last)
		g.FirstFailedAt, g.LastFailedAt = fromMillis(first), fromMillis(last)
		if n := len(groups); n > 0 && groups[n-1].Fingerprint == g.Fingerprint {
			addTo(&groups[n-1], g)
		} else {
			groups = append(groups, g)
		}
		return err
	})
	return groups, err
}

// moreThan reports whether more than n rows match.
func (t table) moreThan(ctx context.Context, tx *sql.Tx, n int, c *operate.Conditions) (more bool, err error) {
	err = t.query(ctx, tx, `SELECT id FROM `+t.name+` `+c.Where()+` ORDER BY id DESC LIMIT 1 OFFSET `+strconv.Itoa(n), c,
		func(*sql.Rows) error {
			more = true
			return nil
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
