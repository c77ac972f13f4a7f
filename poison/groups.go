package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
)

// Groups returns the messages in quarantine that match, grouped by their
// fingerprint and in the order of it. Limit and AfterGroup of the Filter apply
// to groups.
//
// If the Filter has no condition other than Fingerprint, Groups takes as long with a
// million entries as with a few. It counts the latest entries of each group: at most
// 10,000 if the page has one group, 2,000 of up to five groups, 500 of up to 20 groups,
// and 100 of more. A group with more entries has Group.More.
//
// With other conditions, Groups looks at the latest 10,000 entries that match. If there
// are more, every group has Group.More, and a group without any of them is missing.
// [Quarantine.Count] and [Quarantine.DryRun] count all.
func (q *Quarantine) Groups(ctx context.Context, f Filter) ([]Group, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("poison: groups: %w", err)
	}
	t := q.table
	if f.wholeGroups() {
		groups, err := t.wholeGroups(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("poison: %w", err)
		}
		return groups, nil
	}
	groups, err := t.matchingGroups(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return groups, nil
}

// groupedEntries is how many of the entries that match Groups looks at.
const groupedEntries = 10_000

// matchingGroups returns the groups among the latest entries that match. The page is
// chosen here, because PostgreSQL would look for the entries twice.
func (t *table) matchingGroups(ctx context.Context, f Filter) (found []Group, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		where, err := t.selected(ctx, tx, f)
		if err == nil {
			err = t.dialect.InOrder(ctx, tx)
		}
		if err != nil {
			return err
		}
		matching := `{parked} WHERE ` + where.String()
		groups, err := t.partsIn(ctx, tx, `(SELECT fingerprint, consumer, topic, reason, error_type, id, first_failed_at, last_failed_at
			FROM `+matching+` ORDER BY id DESC LIMIT `+strconv.Itoa(groupedEntries)+`) AS latest`, where.Args)
		if err != nil {
			return err
		}
		entries := 0
		for _, g := range groups {
			entries += g.Count
		}
		more := entries == groupedEntries
		if more {
			if more, err = t.moreThan(ctx, tx, groupedEntries, matching, where.Args); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g group) bool { return g.Fingerprint <= f.AfterGroup })
		slices.SortFunc(groups, func(a, b group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		found, err = t.described(ctx, tx, groups[:min(len(groups), f.Limit)])
		for i := range found {
			found[i].More = more
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group parked messages: %w", err)
	}
	return found, nil
}

// moreThan reports whether more than n rows match.
func (t *table) moreThan(ctx context.Context, tx *sql.Tx, n int, matching string, args []any) (bool, error) {
	query := t.dialect.SQL(`SELECT id FROM ` + matching + ` ORDER BY id DESC LIMIT 1 OFFSET ` + strconv.Itoa(n))
	err := tx.QueryRowContext(ctx, query, args...).Scan(new(int64))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// DryRun returns all groups among the entries that ReplayMatching would replay
// with the same Filter and Plan, and changes nothing. With the zero Plan the
// groups are also those of DiscardMatching.
func (q *Quarantine) DryRun(ctx context.Context, f Filter, plan Plan) ([]Group, error) {
	if err := errors.Join(f.validateChange(), plan.Validate()); err != nil {
		return nil, fmt.Errorf("poison: dry run: %w", err)
	}
	t := q.table
	where := t.where(f, replayStates(plan, f)...)
	groups, err := t.groups(ctx, `(SELECT * FROM {parked} WHERE `+where.String()+` ORDER BY id LIMIT `+where.Arg(f.limit())+`) AS chosen`,
		where.Args)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return groups, nil
}

// group is a Group, and the ID of its latest entry.
type group struct {
	Group

	lastID int64
}

func (t *table) groups(ctx context.Context, from string, args []any) (found []Group, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		found, err = t.groupsIn(ctx, tx, from, args)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group parked messages: %w", err)
	}
	return found, nil
}

func (t *table) groupsIn(ctx context.Context, tx *sql.Tx, from string, args []any) ([]Group, error) {
	groups, err := t.partsIn(ctx, tx, from, args)
	if err != nil {
		return nil, err
	}
	return t.described(ctx, tx, groups)
}

// partsIn returns groups without their errors, in the order of their fingerprints.
func (t *table) partsIn(ctx context.Context, tx *sql.Tx, from string, args []any) (groups []group, err error) {
	query := t.dialect.SQL(`
		SELECT fingerprint, consumer, topic, MIN(reason), MIN(error_type), COUNT(*), MAX(id),
		       {millis MIN(first_failed_at)}, {millis MAX(last_failed_at)}
		FROM ` + from + `
		GROUP BY fingerprint, consumer, topic ORDER BY fingerprint, consumer, topic`)
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		part, err := scanGroup(scan)
		if n := len(groups); n > 0 && groups[n-1].Fingerprint == part.Fingerprint {
			groups[n-1].add(part)
		} else {
			groups = append(groups, part)
		}
		return err
	}, query, args...)
	return groups, err
}

// described returns groups with their errors.
func (t *table) described(ctx context.Context, tx *sql.Tx, groups []group) (found []Group, err error) {
	if !t.withoutContent {
		err = t.readErrors(ctx, tx, groups)
	}
	for _, g := range groups {
		found = append(found, g.Group)
	}
	return found, err
}

// scanGroup reads the part of a group that has one consumer and one topic.
func scanGroup(scan func(dest ...any) error) (group, error) {
	g := group{Group: Group{Consumers: make([]string, 1), Topics: make([]string, 1)}}
	var first, last sql.NullInt64
	err := scan(&g.Fingerprint, &g.Consumers[0], &g.Topics[0], &g.Reason, &g.ErrorType, &g.Count, &g.lastID, &first, &last)
	g.FirstFailedAt, g.LastFailedAt = timeOf(first), timeOf(last)
	return g, err
}

// add merges part into g. It is the same group for another topic or consumer.
func (g *group) add(part group) {
	for _, set := range []struct {
		to    *[]string
		value string
	}{{&g.Consumers, part.Consumers[0]}, {&g.Topics, part.Topics[0]}} {
		if !slices.Contains(*set.to, set.value) {
			*set.to = append(*set.to, set.value)
		}
	}
	g.Count += part.Count
	g.lastID = max(g.lastID, part.lastID)
	if g.FirstFailedAt.IsZero() || (!part.FirstFailedAt.IsZero() && part.FirstFailedAt.Before(g.FirstFailedAt)) {
		g.FirstFailedAt = part.FirstFailedAt
	}
	if part.LastFailedAt.After(g.LastFailedAt) {
		g.LastFailedAt = part.LastFailedAt
	}
}

// readErrors sets Error of each group.
func (t *table) readErrors(ctx context.Context, tx *sql.Tx, groups []group) error {
	byID := map[int64]*group{}
	ids := make([]int64, len(groups))
	for i := range groups {
		byID[groups[i].lastID] = &groups[i]
		ids[i] = groups[i].lastID
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id   int64
			text string
		)
		if err := scan(&id, &text); err != nil {
			return err
		}
		byID[id].Error = text
		return nil
	}, t.sql.errors, t.dialect.List(ids))
}
