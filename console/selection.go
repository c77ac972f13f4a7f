package console

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
)

// selection is the filter of a list or of a change. It is read from the query of a URL,
// or from a form.
type selection struct {
	IDs                                   []int64
	All                                   bool
	Consumer, Topic, Key, Message, Tenant string
	Reason, ErrorType, Group, State       string
	After, Before                         time.Time // limits of the time that the list is filtered by, such as the time of the failure

	AfterID    int64
	AfterGroup string
	Limit      int
}

// mostIDs is the maximum number of IDs that a URL can contain.
const mostIDs = 500

// timeLayouts are the formats in which a query may contain a time: RFC 3339, and the
// formats that <input type="datetime-local"> sends.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04"}

// newSelection reads the selection from a query. If a value is invalid, the error names
// it.
func newSelection(query url.Values) (s selection, err error) {
	text := func(name string) string { return strings.TrimSpace(query.Get(name)) }
	s = selection{
		All: query.Get("all") != "", Consumer: text("consumer"), Topic: text("topic"), Key: text("key"), Message: text("message"),
		Tenant: text("tenant"), Reason: text("reason"), ErrorType: text("type"), Group: query.Get("group"), State: text("state"),
		AfterGroup: query.Get("aftergroup"),
	}
	for name, values := range query {
		if slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) || strings.ContainsRune(v, 0) }) {
			return s, inputError{fmt.Errorf("%q contains characters that no message can contain", name)}
		}
	}
	for _, id := range query["id"] {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil || n <= 0 {
			return s, inputError{fmt.Errorf("id %q is not a positive number", id)}
		}
		s.IDs = append(s.IDs, n)
	}
	if len(s.IDs) > mostIDs {
		return s, inputError{fmt.Errorf("%d messages are selected, which is more than %d: use a filter", len(s.IDs), mostIDs)}
	}
	for _, field := range []struct {
		name string
		to   *time.Time
	}{{"from", &s.After}, {"to", &s.Before}} {
		if *field.to, err = parseTime(text(field.name)); err != nil {
			return s, inputError{fmt.Errorf("%s: %w", field.name, err)}
		}
	}
	if value := text("after"); value != "" {
		if s.AfterID, err = strconv.ParseInt(value, 10, 64); err != nil || s.AfterID < 0 {
			return s, inputError{fmt.Errorf("after %q is not a number", value)}
		}
	}
	if value := text("limit"); value != "" {
		if s.Limit, err = strconv.Atoi(value); err != nil || s.Limit < 0 {
			return s, inputError{fmt.Errorf("limit %q is not a number", value)}
		}
	}
	return s, nil
}

// check returns an error if the field Reason is not in the parameter reasons, or the
// field State is not in the parameter states. Such a selection would match no row. check
// also returns an error for filters that contradict each other.
func (s selection) check(reasons, states []string) error {
	switch {
	case s.Reason != "" && !slices.Contains(reasons, s.Reason):
		return inputError{fmt.Errorf("reason is %q, but must be one of %s", s.Reason, strings.Join(reasons, ", "))}
	case s.State != "" && !slices.Contains(states, s.State):
		return inputError{fmt.Errorf("state is %q, but must be one of %s", s.State, strings.Join(states, ", "))}
	case !s.Before.IsZero() && !s.After.Before(s.Before):
		return inputError{errors.New("the time in \"to\" is not after the time in \"from\"")}
	case s.All && s.Filtered():
		return inputError{errors.New("\"all\" selects everything: leave it out, or leave out the filters")}
	}
	return nil
}

func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range timeLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as 2026-05-01T12:00", text)
}

// values returns the selection as a query, without the fields AfterID, AfterGroup and
// Limit.
func (s selection) values() url.Values {
	query := url.Values{}
	for _, id := range s.IDs {
		query.Add("id", strconv.FormatInt(id, 10))
	}
	if s.All {
		query.Set("all", "1")
	}
	for name, text := range map[string]string{
		"consumer": s.Consumer, "topic": s.Topic, "key": s.Key, "message": s.Message, "tenant": s.Tenant, "reason": s.Reason,
		"type": s.ErrorType, "group": s.Group, "state": s.State,
	} {
		if text != "" {
			query.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"from": s.After, "to": s.Before} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return query
}

// Pairs returns the selection as hidden fields of a form.
func (s selection) Pairs() (all []pair) {
	query := s.values()
	for name := range query {
		for _, text := range query[name] {
			all = append(all, pair{name, text})
		}
	}
	slices.SortFunc(all, func(a, b pair) int { return strings.Compare(a.Name+"\x00"+a.Value, b.Name+"\x00"+b.Value) })
	return all
}

// pair is a name and a value.
type pair struct{ Name, Value string }

// Change returns the URL of the page on which the operator confirms a change. The
// parameter do is the name of the act. The change applies to all messages that match the
// selection. If the selection has no condition, it applies to all messages.
func (s selection) Change(do string) string {
	query := s.values()
	if len(query) == 0 {
		query.Set("all", "1")
	}
	query.Set("do", do)
	return "change?" + query.Encode()
}

// Empty reports whether the selection has no condition and does not select all messages.
func (s selection) Empty() bool { return !s.All && len(s.values()) == 0 }

// Filtered reports whether the selection has a condition other than All.
func (s selection) Filtered() bool {
	s.All = false
	return len(s.values()) > 0
}

// Local returns a time in the format of <input type="datetime-local">.
func (s selection) Local(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04")
}

func (s selection) pending() pending.Filter {
	return pending.Filter{
		All: s.All, IDs: s.IDs, MessageID: s.Message, Topic: s.Topic, OrderingKey: s.Key, State: pending.State(s.State),
		CreatedAfter: s.After, CreatedBefore: s.Before, AfterID: s.AfterID, Limit: s.Limit,
	}
}

func (s selection) dead() deadletter.Filter {
	return deadletter.Filter{
		All: s.All, IDs: s.IDs, MessageID: s.Message, Topic: s.Topic, OrderingKey: s.Key, Tenant: s.Tenant, Reason: s.Reason,
		Fingerprint: s.Group, FailedAfter: s.After, FailedBefore: s.Before, AfterID: s.AfterID, Limit: s.Limit,
	}
}

func (s selection) sent() deadletter.Filter {
	return deadletter.Filter{
		All: s.All, IDs: s.IDs, MessageID: s.Message, Topic: s.Topic, OrderingKey: s.Key, Tenant: s.Tenant,
		SentAfter: s.After, SentBefore: s.Before, AfterID: s.AfterID, Limit: s.Limit,
	}
}

func (s selection) poison() poison.Filter {
	return poison.Filter{
		All: s.All, IDs: s.IDs, Consumer: s.Consumer, Topic: s.Topic, MessageID: s.Message, Tenant: s.Tenant, Reason: s.Reason,
		ErrorType: s.ErrorType, Fingerprint: s.Group, FailedAfter: s.After, FailedBefore: s.Before, AfterID: s.AfterID, Limit: s.Limit,
	}
}

func (s selection) parked() parked.Filter {
	return parked.Filter{
		All: s.All, IDs: s.IDs, Consumer: s.Consumer, Topic: s.Topic, MessageID: s.Message, Tenant: s.Tenant, OrderingKey: s.Key,
		State: parked.State(s.State), CreatedAfter: s.After, CreatedBefore: s.Before, AfterID: s.AfterID, Limit: s.Limit,
	}
}
