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
	"github.com/watermill-once/once/internal/operate"
)

// Groups returns the messages in quarantine that match f, grouped by their fingerprint
// and in the order of fingerprints. Limit and AfterGroup of the Filter apply to groups.
//
// If the Filter has no condition other than Fingerprint, Groups takes as long with a
// million entries as with a few, because it counts only the latest entries of each
// group. It counts at most 10,000 entries if the page has one group, 2,000 of each
// group for up to five groups, 500 for up to 20 groups, and 100 for more groups. For a
// group with more entries, Group.More is true.
//
// With other conditions, Groups reads the latest 10,000 entries that match. If the
// Filter has several conditions, Groups looks at no more than 10,000 of the entries
// that match the rarest condition, so it may find fewer entries. If more entries may
// match, GroupPage.Partial and Group.More are set, and groups that contain only older
// entries are missing. [Quarantine.DryRun] counts all entries.
func (q *Quarantine) Groups(ctx context.Context, f Filter) (GroupPage, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return GroupPage{}, fmt.Errorf("poison: groups: %w", err)
	}
	t := q.table
	if f.wholeGroups() {
		groups, err := t.wholeGroups(ctx, f)
		if err != nil {
			return GroupPage{}, fmt.Errorf("poison: %w", err)
		}
		return GroupPage{Groups: groups}, nil
	}
	p, err := t.matchingGroups(ctx, f)
	if err != nil {
		return GroupPage{}, fmt.Errorf("poison: %w", err)
	}
	return p, nil
}

// groupedEntries is the maximum number of matching entries that Groups reads.
const groupedEntries = 10_000

// matchingGroups returns the groups of the latest entries that match. Go code and not
// the query selects the groups of the page, because PostgreSQL would read the entries
// twice.
func (t *table) matchingGroups(ctx context.Context, f Filter) (p GroupPage, err error) {
	err = t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
		w, err := t.window(ctx, tx, f, true)
		if err != nil {
			return err
		}
		groups, err := t.partsIn(ctx, tx, `(SELECT fingerprint, consumer, topic, reason, error_type, id, first_failed_at, last_failed_at
			FROM `+w.From()+` ORDER BY id DESC LIMIT `+strconv.Itoa(groupedEntries)+`) AS latest`, w.Args)
		if err != nil {
			return err
		}
		entries := 0
		for _, g := range groups {
			entries += g.Count
		}
		p.Partial = w.Next > 0
		if entries == groupedEntries && !p.Partial {
			if p.Partial, err = t.moreThan(ctx, tx, groupedEntries, w); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g group) bool { return g.Fingerprint <= f.AfterGroup })
		slices.SortFunc(groups, func(a, b group) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		p.Groups, err = t.described(ctx, tx, groups[:min(len(groups), f.Limit)])
		for i := range p.Groups {
			p.Groups[i].More = p.Partial
		}
		return err
	})
	if err != nil {
		return GroupPage{}, fmt.Errorf("group parked messages: %w", err)
	}
	return p, nil
}

// moreThan reports whether more than n rows match.
func (t *table) moreThan(ctx context.Context, tx *sql.Tx, n int, w operate.Window) (bool, error) {
	query := t.dialect.SQL(`SELECT id FROM ` + w.From() + ` ORDER BY id DESC LIMIT 1 OFFSET ` + strconv.Itoa(n))
	err := tx.QueryRowContext(ctx, query, w.Args...).Scan(new(int64))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// DryRun returns all groups of the entries that ReplayMatching would replay with the
// same Filter and Plan. It changes nothing. With the zero Plan, these are also the
// entries that DiscardMatching would discard.
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

// group is a Group with the ID of its latest entry.
type group struct {
	Group

	lastID int64
}

func (t *table) groups(ctx context.Context, from string, args []any) (found []Group, err error) {
	err = t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
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

// partsIn returns groups without their error texts, in the order of fingerprints.
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

// described returns groups with their error texts.
func (t *table) described(ctx context.Context, tx *sql.Tx, groups []group) (found []Group, err error) {
	if !t.withoutContent {
		err = t.readErrors(ctx, tx, groups)
	}
	for _, g := range groups {
		found = append(found, g.Group)
	}
	return found, err
}

// scanGroup reads one part of a group: the entries of one consumer and one topic.
func scanGroup(scan func(dest ...any) error) (group, error) {
	g := group{Group: Group{Consumers: make([]string, 1), Topics: make([]string, 1)}}
	var first, last sql.NullInt64
	err := scan(&g.Fingerprint, &g.Consumers[0], &g.Topics[0], &g.Reason, &g.ErrorType, &g.Count, &g.lastID, &first, &last)
	g.FirstFailedAt, g.LastFailedAt = timeOf(first), timeOf(last)
	return g, err
}

// add adds the entries of the group part to the group g. Both groups have the same
// fingerprint, but different topics or consumers.
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

// readErrors sets the error text of each group to the error text of its latest entry.
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
