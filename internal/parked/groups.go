package parked

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Group is the entries that failed for one cause.
type Group struct {
	Fingerprint   string
	Reason        string
	ErrorType     string
	Error         string // of the entry that came last
	Consumers     []string
	Topics        []string
	Count         int64
	FirstFailedAt time.Time
	LastFailedAt  time.Time

	last int64 // the entry that came last
}

// Groups returns a page of groups in order of their fingerprints.
func (s *Store) Groups(ctx context.Context, f Filter, states ...string) ([]Group, error) {
	where := s.where(f, states...)
	return s.groups(ctx, `{parked} WHERE `+where.String()+` AND fingerprint IN (
		SELECT DISTINCT fingerprint FROM {parked}
		WHERE `+where.String()+` AND fingerprint > `+where.arg(f.AfterGroup)+`
		ORDER BY fingerprint LIMIT `+where.arg(f.limit())+`)`, where.args)
}

// GroupsOf returns all groups among the entries that an act with this Filter
// would be about.
func (s *Store) GroupsOf(ctx context.Context, f Filter, states ...string) ([]Group, error) {
	where := s.where(f, states...)
	return s.groups(ctx, `(SELECT * FROM {parked} WHERE `+where.String()+` ORDER BY id LIMIT `+where.arg(f.limit())+`) AS chosen`,
		where.args)
}

func (s *Store) groups(ctx context.Context, from string, args []any) ([]Group, error) {
	query := s.dialect.SQL(`
		SELECT fingerprint, consumer, topic, MIN(reason), MIN(error_type), COUNT(*), MAX(id),
		       {millis MIN(first_failed_at)}, {millis MAX(last_failed_at)}
		FROM ` + from + `
		GROUP BY fingerprint, consumer, topic ORDER BY fingerprint, consumer, topic`)
	var groups []Group
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		err := eachRow(ctx, tx, func(scan func(dest ...any) error) error {
			part, err := scanGroup(scan)
			if n := len(groups); n > 0 && groups[n-1].Fingerprint == part.Fingerprint {
				groups[n-1].add(part)
			} else {
				groups = append(groups, part)
			}
			return err
		}, query, args...)
		if err != nil {
			return err
		}
		return s.samples(ctx, tx, groups)
	})
	if err != nil {
		return nil, fmt.Errorf("group parked messages: %w", err)
	}
	return groups, nil
}

func scanGroup(scan func(dest ...any) error) (Group, error) {
	g := Group{Consumers: make([]string, 1), Topics: make([]string, 1)}
	var first, last sql.NullInt64
	err := scan(&g.Fingerprint, &g.Consumers[0], &g.Topics[0], &g.Reason, &g.ErrorType, &g.Count, &g.last, &first, &last)
	g.FirstFailedAt, g.LastFailedAt = timeOf(first), timeOf(last)
	return g, err
}

// add adds what another topic, or consumer, has of the same group.
func (g *Group) add(part Group) {
	for _, set := range []struct {
		to    *[]string
		value string
	}{{&g.Consumers, part.Consumers[0]}, {&g.Topics, part.Topics[0]}} {
		if !slices.Contains(*set.to, set.value) {
			*set.to = append(*set.to, set.value)
		}
	}
	g.Count += part.Count
	g.last = max(g.last, part.last)
	if g.FirstFailedAt.IsZero() || (!part.FirstFailedAt.IsZero() && part.FirstFailedAt.Before(g.FirstFailedAt)) {
		g.FirstFailedAt = part.FirstFailedAt
	}
	if part.LastFailedAt.After(g.LastFailedAt) {
		g.LastFailedAt = part.LastFailedAt
	}
}

// samples fills in an error of each group.
func (s *Store) samples(ctx context.Context, tx *sql.Tx, groups []Group) error {
	byID := map[int64]*Group{}
	ids := make([]int64, len(groups))
	for i := range groups {
		byID[groups[i].last] = &groups[i]
		ids[i] = groups[i].last
	}
	return eachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id   int64
			text string
		)
		if err := scan(&id, &text); err != nil {
			return err
		}
		byID[id].Error = text
		return nil
	}, s.sql.errors, s.dialect.List(ids))
}
