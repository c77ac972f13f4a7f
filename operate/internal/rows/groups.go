package rows

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

// GroupedRows is the maximum number of matching rows that Groups reads.
const GroupedRows = 10_000

// Group is a failure group with the ID of its latest row.
type Group struct {
	operate.Group

	LastID int64
}

// AddGroup adds a part of a group to groups, which are in the order of fingerprints.
func AddGroup(groups []Group, part Group) []Group {
	if n := len(groups); n > 0 && groups[n-1].Fingerprint == part.Fingerprint {
		groups[n-1].Add(part)
		return groups
	}
	return append(groups, part)
}

// Add adds a part with the same fingerprint to g.
func (g *Group) Add(part Group) {
	for _, set := range []struct{ to, values *[]string }{{&g.Consumers, &part.Consumers}, {&g.Topics, &part.Topics}} {
		for _, value := range *set.values {
			if !slices.Contains(*set.to, value) {
				*set.to = append(*set.to, value)
				slices.Sort(*set.to)
			}
		}
	}
	g.Count += part.Count
	if g.FirstFailedAt.IsZero() || !part.FirstFailedAt.IsZero() && part.FirstFailedAt.Before(g.FirstFailedAt) {
		g.FirstFailedAt = part.FirstFailedAt
	}
	g.LastFailedAt = latest(g.LastFailedAt, part.LastFailedAt)
	if part.LastID > g.LastID {
		g.LastID, g.Error = part.LastID, part.Error
	}
	g.Skipped = append(g.Skipped, part.Skipped...)
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Groups returns a page of the groups of the latest rows that match f. read returns all groups of
// the latest GroupedRows rows of a window, in any order. Go code selects those of the page, because
// PostgreSQL would read the rows twice.
func (s *Searched) Groups(
	ctx context.Context, f operate.Filter, errorColumn string, read func(tx *sql.Tx, w Window) ([]Group, error),
) (p operate.GroupPage, err error) {
	if err := s.CheckGroups(f); err != nil {
		return p, err
	}
	err = s.Look(ctx, func(tx *sql.Tx) error {
		w, err := s.Window(ctx, tx, f, true)
		if err != nil {
			return err
		}
		groups, err := read(tx, w)
		if err != nil {
			return err
		}
		n := 0
		for _, g := range groups {
			n += g.Count
		}
		p.Partial = w.Next > 0
		if n == GroupedRows && !p.Partial {
			if p.Partial, err = s.moreThan(ctx, tx, GroupedRows, w); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g Group) bool { return g.Fingerprint <= f.AfterGroup })
		slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		p.Groups, err = s.Described(ctx, tx, groups[:min(len(groups), cmp.Or(f.Limit, PageRows))], errorColumn)
		for i := range p.Groups {
			p.Groups[i].More = p.Partial
		}
		return err
	})
	return p, err
}

func (s *Searched) moreThan(ctx context.Context, tx *sql.Tx, n int, w Window) (bool, error) {
	query := s.SQL(`SELECT id FROM ` + w.From() + ` ORDER BY id DESC LIMIT 1 OFFSET ` + strconv.Itoa(n))
	err := tx.QueryRowContext(ctx, query, w.Args...).Scan(new(int64))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// Described returns groups with the texts in the column errorColumn of their latest rows.
func (s *Searched) Described(ctx context.Context, tx *sql.Tx, groups []Group, errorColumn string) (found []operate.Group, err error) {
	texts, ids := map[int64]string{}, make([]int64, len(groups))
	for i, g := range groups {
		ids[i] = g.LastID
	}
	if len(s.Contents(errorColumn)) > 0 {
		c := &Conditions{}
		c.Add(s.IDs, s.List(ids))
		err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				id   int64
				text string
			)
			err := scan(&id, &text)
			texts[id] = text
			return err
		}, s.SQL(`SELECT id, `+errorColumn+` FROM `+s.Name+` `+c.Where()), c.Args...)
	}
	for _, g := range groups {
		g.Error = texts[g.LastID]
		found = append(found, g.Group)
	}
	return found, err
}
