package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// A value that can only be on or off is refused if it is neither, because "no" could mean on.
func TestSwitchesAreOnOrOff(t *testing.T) {
	for text, want := range map[string]bool{"": false, "0": false, "false": false, "1": true, "true": true, "on": true} {
		s, err := newSelection(url.Values{"all": {text}})
		if err != nil || s.All != want {
			t.Errorf("all %q: %t, %v; want %t", text, s.All, err, want)
		}
		p, err := newPlan(url.Values{"force": {text}, "stop": {text}}, act{HasPlan: true, Force: "yes"})
		if err != nil || p.Force != want || p.StopOnFailure != want {
			t.Errorf("force %q: %+v, %v; want %t", text, p, err, want)
		}
	}
	const want = `is "no", but must be true or false`
	if _, err := newSelection(url.Values{"all": {"no"}}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("all: %v", err)
	}
	if _, err := newPlan(url.Values{"force": {"no"}}, act{Force: "yes"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("force: %v", err)
	}
}

// At most mostIDs messages are selected one by one.
func TestSelectionHasALimitedNumberOfIDs(t *testing.T) {
	ids := make([]string, mostIDs)
	for n := range ids {
		ids[n] = fmt.Sprint(n + 1)
	}
	if s, err := newSelection(url.Values{"id": ids}); err != nil || len(s.IDs) != mostIDs {
		t.Errorf("%d IDs, %v; want %d", len(s.IDs), err, mostIDs)
	}
	one := slices.Concat(ids, []string{"1"})
	if _, err := newSelection(url.Values{"id": one}); err == nil || !strings.Contains(err.Error(), "501 messages are selected") {
		t.Errorf("one more: %v", err)
	}
}
