package audit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Filter selects the acts that match all fields that are not empty.
type Filter struct {
	// Actor, Action, Subject, Consumer and MessageID must be equal to the fields of
	// [Record].
	Actor     string
	Action    string
	Subject   string
	Consumer  string
	MessageID string

	// ReplayID is the ID of the replay of many entries to which the acts belong.
	ReplayID int64

	// After (inclusive) and Before (exclusive) limit the time of the act, by the database's
	// clock. Both are cut to whole milliseconds.
	After, Before time.Time

	// BeforeID selects acts with a lower ID. Set it to Next of the previous page.
	// Defaults to the beginning of the list.
	BeforeID int64

	// Limit is the maximum number of acts. Defaults to 100.
	Limit int
}

func (f Filter) withDefaults() Filter {
	f.Limit = cmp.Or(f.Limit, 100)
	f.BeforeID = cmp.Or(f.BeforeID, math.MaxInt64)
	return f
}

func (f Filter) validate() error {
	var errs []error
	for name, value := range map[string]int64{"Limit": int64(f.Limit), "BeforeID": f.BeforeID, "ReplayID": f.ReplayID} {
		if value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: negative", name, value))
		}
	}
	if !f.Before.IsZero() && !f.After.Before(f.Before) {
		errs = append(errs, errors.New("Before is not after After"))
	}
	return errors.Join(errs...)
}

// where returns the conditions, the order and the limit of a query for acts, and its
// arguments. The parameter first is the lowest ID that the query reads.
func (f Filter) where(first int64, sqlite bool) (where string, args []any) {
	var texts []string
	add := func(condition string, value any) {
		args = append(args, value)
		texts = append(texts, fmt.Sprintf("%s $%d", condition, len(args)))
	}
	moment := func(at time.Time) any {
		if sqlite {
			return at.UnixMilli()
		}
		return at.Truncate(time.Millisecond)
	}
	add("id >=", first)
	add("id <", f.BeforeID)
	for _, field := range []struct{ column, value string }{
		{"actor", f.Actor},
		{"action", f.Action},
		{"subject", f.Subject},
		{"consumer", f.Consumer},
		{"message_id", f.MessageID},
	} {
		if field.value != "" {
			add(field.column+" =", field.value)
		}
	}
	if f.ReplayID != 0 {
		add("replay_id =", f.ReplayID)
	}
	if !f.After.IsZero() {
		add("at >=", moment(f.After))
	}
	if !f.Before.IsZero() {
		add("at <", moment(f.Before))
	}
	args = append(args, f.Limit)
	return fmt.Sprintf("%s ORDER BY id DESC LIMIT $%d", strings.Join(texts, " AND "), len(args)), args
}
