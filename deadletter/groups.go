package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Group is the dead letters with the same reason and the same error text.
type Group struct {
	// Fingerprint is the reason and the error, as in "exhausted: no queue". A
	// Filter finds the letters of the group by it.
	Fingerprint string

	// Count is the number of letters.
	Count int

	// Topics are the topics of the letters, in alphabetical order.
	Topics []string

	// Reason and Error are those of each letter.
	Reason, Error string

	// FirstFailedAt and LastFailedAt are the earliest and the latest time at which
	// a message of the group became a dead letter.
	FirstFailedAt, LastFailedAt time.Time

	// Skipped are the IDs of the letters that a replay skips because they need
	// Plan.Force, in ascending order. Only DryRun fills it in.
	Skipped []int64
}

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
	where := c.where()
	c.add(fingerprint+` > %s`, f.AfterGroup)
	query := `SELECT ` + fingerprint + ` AS fingerprint, reason, last_error, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}
		FROM (SELECT reason, last_error, topic, died_at FROM {outbox_dead} ` + where + `) AS matching
		WHERE ` + fingerprint + ` IN (SELECT DISTINCT ` + fingerprint + ` FROM {outbox_dead} ` + c.where() + `
		                              ORDER BY 1 LIMIT ` + c.arg(cmp.Or(f.Limit, page)) + `)
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
				groups[n-1].add(g)
			} else {
				groups = append(groups, g)
			}
			return err
		})
	})
	return groups, err
}

// add adds other letters of the group.
func (g *Group) add(other Group) {
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
