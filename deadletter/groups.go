package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
)

// fingerprint is an SQL expression for Group.Fingerprint.
const fingerprint = `reason || ': ' || last_error`

// Groups returns the letters that match, grouped by reason and error, in
// ascending order of Fingerprint. Filter.Limit and Filter.AfterGroup count
// groups.
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
	where := c.Where()
	c.Add(fingerprint+` > %s`, f.AfterGroup)
	query := `SELECT ` + fingerprint + ` AS fingerprint, reason, last_error, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}
		FROM (SELECT reason, last_error, topic, died_at FROM {outbox_dead} ` + where + `) AS matching
		WHERE ` + fingerprint + ` IN (SELECT DISTINCT ` + fingerprint + ` FROM {outbox_dead} ` + c.Where() + `
		                              ORDER BY 1 LIMIT ` + c.Arg(cmp.Or(f.Limit, page)) + `)
		GROUP BY reason, last_error, topic ORDER BY fingerprint, topic`
	var groups []Group
	err := l.table.read(ctx, func(tx *sql.Tx) error {
		return l.table.query(ctx, tx, query, c, func(rows *sql.Rows) error {
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
	})
	return groups, err
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
