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

// fingerprint is the SQL expression of Group.Fingerprint.
const fingerprint = `reason || ': ' || last_error`

// groupedLetters is the maximum number of matching letters that Groups reads.
const groupedLetters = 10_000

// Groups returns the letters that match f, grouped by reason and error, in ascending
// order of Fingerprint. Filter.Limit is the maximum number of groups.
//
// Groups reads only the latest 10,000 letters that match, so that it is quick with a
// million letters. If the Filter has several conditions, Groups looks at no more than
// 10,000 of the letters that match the rarest condition, so it may find fewer letters.
// If more letters may match, GroupPage.Partial and Group.More are set, and groups that
// contain only older letters are missing. [Letters.DryRun] counts all letters.
func (l *Letters) Groups(ctx context.Context, f Filter) (GroupPage, error) {
	p, err := l.groups(ctx, f)
	if err != nil {
		return GroupPage{}, fmt.Errorf("deadletter: groups: %w", err)
	}
	return p, nil
}

func (l *Letters) groups(ctx context.Context, f Filter) (p GroupPage, err error) {
	if err := l.table.validateGroups(f); err != nil {
		return p, err
	}
	err = l.table.read(ctx, func(tx *sql.Tx) error {
		w, err := l.table.window(ctx, tx, f, true)
		if err != nil {
			return err
		}
		groups, err := l.latestGroups(ctx, tx, w)
		if err != nil {
			return err
		}
		letters := 0
		for _, g := range groups {
			letters += g.Count
		}
		p.Partial = w.Next > 0
		if letters == groupedLetters && !p.Partial {
			if p.Partial, err = l.table.moreThan(ctx, tx, groupedLetters, w); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g Group) bool { return g.Fingerprint <= f.AfterGroup })
		slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		p.Groups = groups[:min(len(groups), cmp.Or(f.Limit, page))]
		for i := range p.Groups {
			p.Groups[i].More = p.Partial
		}
		return nil
	})
	return p, err
}

// latestGroups returns the groups of the latest dead letters in w. It reads at most
// groupedLetters of them, so older dead letters are not counted.
func (l *Letters) latestGroups(ctx context.Context, tx *sql.Tx, w operate.Window) (groups []Group, err error) {
	query := `SELECT ` + fingerprint + ` AS fingerprint, reason, last_error, topic, COUNT(*), {millis MIN(died_at)}, {millis MAX(died_at)}
		FROM (SELECT reason, last_error, topic, died_at FROM ` + w.From("last_error") + `
		      ORDER BY id DESC LIMIT ` + strconv.Itoa(groupedLetters) + `) AS latest
		GROUP BY reason, last_error, topic ORDER BY fingerprint, topic`
	err = l.table.query(ctx, tx, query, &operate.Conditions{Args: w.Args}, func(rows *sql.Rows) error {
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

// moreThan reports whether the window w contains more than n matching rows.
func (t table) moreThan(ctx context.Context, tx *sql.Tx, n int, w operate.Window) (more bool, err error) {
	query := `SELECT id FROM ` + w.From("last_error") + ` ORDER BY id DESC LIMIT 1 OFFSET ` + strconv.Itoa(n)
	err = t.query(ctx, tx, query, &operate.Conditions{Args: w.Args},
		func(*sql.Rows) error {
			more = true
			return nil
		})
	return more, err
}

// addTo adds the letters of other to g. The parameters g and other describe two parts
// of the same group.
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
