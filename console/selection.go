package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/watermill-once/once/operate"
)

// selection is the filter of a list or of a change, from a query or a form.
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

const mostIDs = 500

// RFC 3339, and what <input type="datetime-local"> sends.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04"}

// selected returns the selection of a list.
func selected(r *http.Request, page string, reasons, states []string) (selection, error) {
	s, err := newSelection(r.URL.Query())
	if err == nil {
		err = s.check(filters[page], reasons, states)
	}
	return s, err
}

func newSelection(query url.Values) (s selection, err error) {
	for name, to := range map[string]*string{
		"consumer": &s.Consumer, "topic": &s.Topic, "key": &s.Key, "message": &s.Message, "tenant": &s.Tenant, "reason": &s.Reason,
		"type": &s.ErrorType, "group": &s.Group, "state": &s.State, "aftergroup": &s.AfterGroup,
	} {
		if *to, err = formValue(query, name); err != nil {
			return s, err
		}
	}
	if s.All, err = isOn(query, "all"); err != nil {
		return s, err
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
		if *field.to, err = parseTime(query.Get(field.name)); err != nil {
			return s, inputError{fmt.Errorf("%s: %w", field.name, err)}
		}
	}
	if value := query.Get("after"); value != "" {
		if s.AfterID, err = strconv.ParseInt(value, 10, 64); err != nil || s.AfterID < 0 {
			return s, inputError{fmt.Errorf("after %q is not a number", value)}
		}
	}
	if value := query.Get("limit"); value != "" {
		if s.Limit, err = strconv.Atoi(value); err != nil || s.Limit < 0 {
			return s, inputError{fmt.Errorf("limit %q is not a number", value)}
		}
	}
	return s, nil
}

var filters = map[string][]string{
	"outbox":     {"id", "all", "topic", "key", "message", "tenant", "state", "from", "to"},
	"dead":       {"id", "all", "topic", "key", "message", "tenant", "reason", "group", "from", "to"},
	"sent":       {"id", "all", "topic", "key", "message", "tenant", "from", "to"},
	"quarantine": {"id", "all", "consumer", "topic", "message", "tenant", "reason", "type", "group", "from", "to"},
	"parked":     {"id", "all", "consumer", "topic", "key", "message", "tenant", "state", "from", "to"},
	"audit":      {"consumer", "message", "from", "to"},
}

// check refuses a filter that is not in filters, which would be ignored and select more messages, a
// Reason or State that would match no row, and filters that contradict each other.
func (s selection) check(filters, reasons, states []string) error {
	for name := range s.values() {
		if !slices.Contains(filters, name) {
			return inputError{fmt.Errorf("%q is no filter here: use %s", name, strings.Join(filters, ", "))}
		}
	}
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

// values leaves out AfterID, AfterGroup and Limit.
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

func (s selection) Pairs() (all []pair) {
	query := s.values()
	for name := range query {
		for _, text := range query[name] {
			all = append(all, formField(name, text))
		}
	}
	slices.SortFunc(all, func(a, b pair) int { return strings.Compare(a.Name+"\x00"+a.Value, b.Name+"\x00"+b.Value) })
	return all
}

type pair struct{ Name, Value string }

// The value of a field with this end is quoted as in Go.
const quoted = ".quoted"

// Browsers change line breaks in a field, so a value with some is quoted.
func formField(name, value string) pair {
	if strings.ContainsAny(value, "\r\n") {
		return pair{name + quoted, strconv.Quote(value)}
	}
	return pair{name, value}
}

// formValue changes nothing: names can differ only in the blanks at their ends.
func formValue(query url.Values, name string) (string, error) {
	values := slices.Clone(query[name])
	for _, text := range query[name+quoted] {
		if text == "" { // the person has cleared the field
			continue
		}
		value, err := strconv.Unquote(text)
		if err != nil {
			return "", inputError{fmt.Errorf("%s is %q, but must be in double quotes, with \\n for a line break", name, text)}
		}
		values = append(values, value)
	}
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", inputError{fmt.Errorf("%q has %d values, but can have only one", name, len(values))}
	case !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0):
		return "", inputError{fmt.Errorf("%q contains characters that no message can contain", name)}
	}
	return values[0], nil
}

// isOn returns the value of a switch. Text that only looks like "off" must not mean "on".
func isOn(query url.Values, name string) (bool, error) {
	switch text, err := formValue(query, name); {
	case err != nil:
		return false, err
	case slices.Contains([]string{"", "0", "false"}, text):
		return false, nil
	case slices.Contains([]string{"1", "true", "on"}, text):
		return true, nil
	default:
		return false, inputError{fmt.Errorf("%s is %q, but must be true or false", name, text)}
	}
}

// Change returns the page on which a person confirms the change of all messages in the selection.
// do makes the change.
func (s selection) Change(do string) string {
	query := s.values()
	if len(query) == 0 {
		query.Set("all", "1")
	}
	query.Set("do", do)
	return "change?" + query.Encode()
}

func (s selection) Empty() bool { return !s.All && len(s.values()) == 0 }

func (s selection) Filtered() bool {
	s.All = false
	return len(s.values()) > 0
}

func (s selection) Local(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04")
}

// Pages differ in the time by which their lists are filtered.
func (s selection) filter(page string) operate.Filter {
	f := operate.Filter{
		All: s.All, IDs: s.IDs, Consumer: s.Consumer, Topic: s.Topic, MessageID: s.Message, OrderingKey: s.Key, Tenant: s.Tenant,
		State: s.State, Reason: s.Reason, ErrorType: s.ErrorType, Fingerprint: s.Group, AfterID: s.AfterID, Limit: s.Limit,
	}
	switch page {
	case "outbox", "parked":
		f.CreatedAfter, f.CreatedBefore = s.After, s.Before
	case "sent":
		f.SentAfter, f.SentBefore = s.After, s.Before
	default:
		f.FailedAfter, f.FailedBefore = s.After, s.Before
	}
	return f
}
