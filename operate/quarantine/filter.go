package quarantine

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// The states are constants, "" for all. They are literals in the query, because the database does
// not use a partial index for a parameter.
func (t *table) in(states ...string) *rows.Searched {
	s := t.Searched
	s.Fixed = func(f operate.Filter) []string { return fixed(f, states...) }
	return &s
}

func (t *table) where(f operate.Filter, states ...string) *rows.Conditions {
	return t.in(states...).Where(f)
}

func fixed(f operate.Filter, states ...string) []string {
	texts := []string{"id > 0"}
	if f.MessageID != "" { // only the index on message ids has this condition, so no other index matches
		texts = []string{"message_id <> ''"}
	}
	if len(states) > 0 && states[0] != "" {
		texts = append(texts, withinStates(f, states))
	}
	return texts
}

// replayed returns where a call looks for the replayed messages that match f.
func (t *table) replayed(ctx context.Context, tx *sql.Tx, f operate.Filter) (rows.Window, error) {
	if err := t.InOrder(ctx, tx); err != nil {
		return rows.Window{}, err
	}
	s := t.in()
	s.Fixed = func(f operate.Filter) []string {
		return append(fixed(f), "replays > 0", stateIn([]string{parkedrows.Waiting, parkedrows.Held}))
	}
	return s.Bounded(ctx, tx, []*rows.Conditions{s.Where(rows.Only(f))}, func(c *rows.Conditions) { c.Filter(t.Dialect, s.Table, f) }, false)
}

// narrow returns f with the IDs of the entries that failed between f.FailedAfter and
// f.FailedBefore, with their range if there are many, or unchanged if there are too many to find
// the range.
func (t *table) narrow(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error) {
	if f.IDs != nil || f.MessageID != "" || f.FailedAfter.IsZero() && f.FailedBefore.IsZero() {
		return f, nil
	}
	at := &rows.Conditions{Texts: []string{stateIn([]string{parkedrows.Quarantined})}}
	at.AddSpan(t.Dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	ids, few, err := t.Few(ctx, tx, at)
	if err != nil || few {
		f.IDs = ids
		return f, err
	}
	first, last, known, err := t.Span(ctx, tx, at)
	if known {
		f.AfterID, f.UntilID = max(f.AfterID, first-1), last
	}
	return f, err
}

// withinStates returns the SQL condition of the states in a form that only the best index matches.
// With old statistics, the planner may choose the index of all quarantined rows, although another
// index finds fewer rows. The database uses a partial index only for its own condition. So:
//
//   - If the Filter has a message id, no index of states matches, and the planner uses
//     the index of message ids.
//   - If the Filter has an aggregate id, the index of aggregates matches, whose
//     condition is parkedrows.AtRest. This is correct, because the callers pass only states
//     that parkedrows.AtRest includes.
//   - If the Filter has a consumer, and no condition with a better index, the index of
//     consumers matches.
//   - Otherwise the indexes of states match.
func withinStates(f operate.Filter, states []string) string {
	switch {
	case f.MessageID != "":
		return "'' || " + stateIn(states)
	case f.AggregateID != "":
		return "aggregate_id <> '' AND " + parkedrows.AtRest + " AND '' || " + stateIn(states)
	case f.Consumer != "" && f.Fingerprint+f.Tenant+f.AggregateType+f.EventType+f.ErrorType == "" &&
		slices.Equal(states, []string{parkedrows.Quarantined}):
		return "state || '' = 'quarantined'"
	default:
		return stateIn(states)
	}
}

func stateIn(states []string) string {
	if len(states) == 1 { // SQLite finds no partial index for IN with one element
		return "state = '" + states[0] + "'"
	}
	return "state IN ('" + strings.Join(states, "', '") + "')"
}

// Without Filter.Limit, limit is larger than any table.
func limit(f operate.Filter) int64 {
	if f.Limit == 0 {
		return 1 << 62
	}
	return int64(f.Limit)
}
