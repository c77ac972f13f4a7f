package deadletter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// DryRun returns the letters that ReplayMatching would replay or skip with the same
// Filter and Plan. It changes nothing. It returns the letters as groups, in ascending
// order of Fingerprint. With Plan.Force, these are also the letters that
// DiscardMatching would delete.
func (l *Letters) DryRun(ctx context.Context, f Filter, plan Plan) ([]Group, error) {
	groups := map[string]*Group{}
	err := l.table.dryRun(ctx, f, l.replay(Act{}, plan), fingerprint+`, reason, last_error, topic, {millis died_at}`,
		func(rows *sql.Rows, id, force *int64) error {
			var (
				g    = Group{Count: 1, Topics: make([]string, 1)}
				died int64
			)
			if err := rows.Scan(id, force, &g.Fingerprint, &g.Reason, &g.Error, &g.Topics[0], &died); err != nil {
				return err
			}
			g.FirstFailedAt, g.LastFailedAt = fromMillis(died), fromMillis(died)
			if *force != noForce && !plan.Force {
				g.Skipped = []int64{*id}
			}
			if known, ok := groups[g.Fingerprint]; ok {
				addTo(known, g)
			} else {
				groups[g.Fingerprint] = &g
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("deadletter: dry run: %w", err)
	}
	return sorted(groups, func(a, b *Group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) }), nil
}

var errLimit = errors.New("the Limit is reached")

// dryRun calls the function scan for each row that the operation op would examine, in
// the order of the IDs. The function scan reads the ID of the row, the reason why the
// row needs force (see row.force), and the columns in the parameter columns.
func (t table) dryRun(
	ctx context.Context, f Filter, op operation, columns string, scan func(rows *sql.Rows, id, force *int64) error,
) error {
	if err := errors.Join(t.validateChange(f), validate(op.Plan)); err != nil {
		return err
	}
	replayed := 0
	err := t.read(ctx, func(tx *sql.Tx) error {
		c, err := t.selected(ctx, tx, f)
		if err != nil {
			return err
		}
		query := `SELECT id, ` + t.forceColumn(op, c) + `, ` + columns + ` FROM ` + t.name + ` ` + c.Where() + ` ORDER BY id`
		return t.query(ctx, tx, query, c, func(rows *sql.Rows) error {
			if f.Limit > 0 && replayed == f.Limit {
				return errLimit
			}
			var id, force int64
			err := scan(rows, &id, &force)
			if force == noForce || op.Force {
				replayed++
			}
			return err
		})
	})
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

func sorted[G any](groups map[string]*G, compare func(a, b *G) int) []G {
	var all []G
	for _, g := range slices.SortedFunc(maps.Values(groups), compare) {
		all = append(all, *g)
	}
	return all
}
