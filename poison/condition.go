package poison

import (
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// where returns the SQL condition of a Filter, for rows in one of the states. Without
// states, or with the state "", rows in all states match. The condition contains only
// the fields that are set, so that the database finds a matching index. The states must
// be constants of this library. The query contains them as literals and not as
// parameters, because the database does not use a partial index for a parameter.
func (t *table) where(f Filter, states ...string) *operate.Conditions {
	c := &operate.Conditions{}
	t.add(c, f, states...)
	return c
}

// add adds the condition of a Filter to c.
func (t *table) add(c *operate.Conditions, f Filter, states ...string) {
	if f.MessageID != "" { // only the index on message ids has this condition, so no other index matches
		c.Texts = append(c.Texts, "message_id <> ''")
	} else {
		c.Texts = append(c.Texts, "id > 0")
	}
	if len(states) > 0 && states[0] != "" {
		c.Texts = append(c.Texts, f.withinStates(states))
	}
	if f.IDs != nil {
		c.Add("id {among %s bigint}", t.dialect.List(f.IDs))
	}
	f = f.asStored()
	aggregateType := "aggregate_type"
	if f.AggregateID != "" { // the index on the types would find more rows
		aggregateType += " || ''"
	}
	for column, value := range map[string]string{
		"tenant": f.Tenant, aggregateType: f.AggregateType, "event_type": f.EventType, "error_type": f.ErrorType,
	} {
		if value != "" { // the index has this condition
			c.Texts = append(c.Texts, column+" <> ''")
		}
	}
	for _, text := range []struct{ column, value string }{
		{"consumer", f.Consumer},
		{"topic", f.Topic},
		{"message_id", f.MessageID},
		{"tenant", f.Tenant},
		{aggregateType, f.AggregateType},
		{"aggregate_id", f.AggregateID},
		{"event_type", f.EventType},
		{"reason", f.Reason},
		{"error_type", f.ErrorType},
		{"fingerprint", f.Fingerprint},
	} {
		if text.value != "" {
			c.Add(text.column+" = %s", text.value)
		}
	}
	c.AddSpan(t.dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	if f.AfterID > 0 {
		c.Add("id > %s", f.AfterID)
	}
	if f.untilID > 0 {
		c.Add("id <= %s", f.untilID)
	}
}

// withinStates returns the SQL condition of the states. With old statistics, the
// planner may choose the index of all quarantined rows, although another index finds
// fewer rows. The database uses a partial index only if the query contains the
// condition of this index. So withinStates writes the condition in a form that only the
// best index matches:
//
//   - If the Filter has a message id, no index of states matches, and the planner uses
//     the index of message ids.
//   - If the Filter has an aggregate id, the index of aggregates matches, whose
//     condition is parked.AtRest. This is correct, because the callers pass only states
//     that parked.AtRest includes.
//   - If the Filter has a consumer, and no condition with a better index, the index of
//     consumers matches.
//   - Otherwise the indexes of states match.
func (f Filter) withinStates(states []string) string {
	switch {
	case f.MessageID != "":
		return "'' || " + stateIn(states)
	case f.AggregateID != "":
		return "aggregate_id <> '' AND " + parked.AtRest + " AND '' || " + stateIn(states)
	case f.Consumer != "" && f.Fingerprint+f.Tenant+f.AggregateType+f.EventType+f.ErrorType == "" &&
		slices.Equal(states, []string{parked.Quarantined}):
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
