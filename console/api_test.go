package console_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/console"
)

var update = flag.Bool("update", false, "write docs/console-api.json")

const described = "../docs/console-api.json"

func TestDescriptionOfTheAPIMatchesTheHandlers(t *testing.T) {
	b := quickBench(t, nil)
	got := append(b.console.OpenAPI(), '\n')
	if *update {
		if err := os.WriteFile(described, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(described)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/console-api.json differs from the code: run go test ./console -run TestDescriptionOfTheAPI -update")
	}
}

// call sends values to a page of the API as a program does, and returns the JSON that it gets after
// redirects.
func (b *bench) call(method, page string, values any, change ...func(r *http.Request)) (status int, body any) {
	b.Helper()
	for range 3 {
		var content io.Reader
		if values != nil {
			text, err := json.Marshal(values)
			if err != nil {
				b.Fatal(err)
			}
			content = bytes.NewReader(text)
		}
		r, err := http.NewRequestWithContext(b.Context(), method, b.server.URL+b.prefix+"api/"+page, content)
		if err != nil {
			b.Fatal(err)
		}
		if values != nil {
			r.Header.Set("Content-Type", "application/json")
		}
		for _, f := range change {
			f(r)
		}
		client := *b.server.Client()
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		response, err := client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			b.Fatal(err)
		}
		if response.StatusCode == http.StatusSeeOther {
			method, page, values = http.MethodGet, response.Header.Get("Location"), nil
			continue
		}
		if page, _, _ := strings.Cut(page, "?"); page != "payload" || response.StatusCode != http.StatusOK {
			if err := json.Unmarshal(text, &body); err != nil || response.Header.Get("Content-Type") != "application/json" {
				b.Fatalf("%s: %v: %s", page, err, text)
			}
		}
		return response.StatusCode, body
	}
	b.Fatal("too many redirects")
	return 0, nil
}

// found returns the member of an object with this path.
func found(in any, path ...string) any {
	for _, name := range path {
		object, _ := in.(map[string]any)
		in = object[name]
	}
	return in
}

// Each page of the API has the form that its description has. A value that it does not know is
// refused, because it could be a filter.
func TestAPIShowsWhatThePagesShow(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	b.Exec(`INSERT INTO once_replays (state, consumer, filter, plan, total, actor, why, stop_reason, until_id)
		VALUES ('stopped', 'payments', '{}', '{}', 1, 'bob', 'why', 'by hand', 0)`)
	if status, body := b.call(http.MethodPost, "note", map[string]any{"group": "g", "note": "known"}); status != http.StatusOK {
		t.Fatal(status, body)
	}
	read, _ := b.console.Endpoints()
	for _, name := range read {
		query := map[string]string{
			"message": "?id=1", "letter": "?id=1", "copy": "?id=1", "parked-message": "?id=5", "entry": "?id=1", "edit": "?id=1",
			"payload": "?of=quarantine&id=1", "change": "?do=replay&consumer=payments", "replay": "?id=1", "trace": "?message=failed-1",
		}[name]
		status, body := b.call(http.MethodGet, name+query, nil)
		if name == "job" || name == "report" { // none
			if status != http.StatusBadRequest && status != http.StatusNotFound {
				t.Errorf("%s: %d %v", name, status, body)
			}
			continue
		}
		if status != http.StatusOK {
			t.Errorf("%s: %d %v", name, status, body)
			continue
		}
		if name != "payload" {
			if differs := b.console.Fits(http.MethodGet, name, body); differs != "" {
				t.Errorf("%s: %s", name, differs)
			}
		}
		status, body = b.call(http.MethodGet, name+"?consumr=payments", nil)
		if text, _ := found(body, "details").(string); status != http.StatusBadRequest || !strings.Contains(text, `"consumr" is no value here`) {
			t.Errorf("%s with an unknown value: %d %v", name, status, body)
		}
	}
	_, quarantine := b.call(http.MethodGet, "quarantine?consumer=payments", nil)
	entries, _ := found(quarantine, "entries").([]any)
	if len(entries) != 3 || found(quarantine, "total", "n") != 3.0 || found(entries[0], "message_id") != "failed-0" {
		t.Errorf("the quarantine has %v", quarantine)
	}
	_, entry := b.call(http.MethodGet, "entry?id=1", nil)
	if text, _ := found(entry, "content", "text").(string); !strings.Contains(text, `"order": 10`) {
		t.Errorf("entry 1 is %v", entry)
	}
	if status, _ := b.call(http.MethodGet, "days", nil); status != http.StatusNotFound {
		t.Errorf("a page of the console that is not in the API: %d", status)
	}
}

// A program that sends a token makes a dry run and then the change, which affects no more messages.
func TestAPIChangesMessages(t *testing.T) {
	token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer s3cret") }
	b := newBench(t, func(c *console.Config) {
		c.Authorize = func(r *http.Request, _ console.Action) (string, error) {
			if r.Header.Get("Authorization") != "Bearer s3cret" {
				return "", errors.New("unknown token")
			}
			return "robot", nil
		}
		c.ReplayToAbsent = true
	})
	b.seed()
	_, dry := b.call(http.MethodGet, "change?do=discard&consumer=payments", nil, token)
	if found(dry, "preview", "total") != 3.0 {
		t.Fatalf("the dry run is %v", dry)
	}
	change := map[string]any{"do": "discard", "consumer": "payments", "limit": 2, "why": "they were tests"}
	status, job := b.call(http.MethodPost, "change", change, token)
	if status != http.StatusOK || found(job, "running") != false || found(job, "state", "report", "done") != 2.0 {
		t.Errorf("the change: %d %v", status, job)
	}
	if differs := b.console.Fits(http.MethodGet, "job", job); differs != "" {
		t.Error(differs)
	}
	status, entry := b.call(http.MethodPost, "edit", map[string]any{
		"id": 3, "exact": "eyJvcmRlciI6N30=", "metadata": map[string]string{"trace": "1"}, "why": "the order was wrong", "confirmed": true,
	}, token)
	if text, _ := found(entry, "content", "text").(string); status != http.StatusOK || !strings.Contains(text, `"order": 7`) {
		t.Errorf("the edit: %d %v", status, entry)
	}
	if n := b.Number(`SELECT COUNT(*) FROM once_audit WHERE actor = 'robot'`); n != 4 { // an edit has two
		t.Errorf("%d rows of the audit log, want 4: %q", n, b.Audits())
	}

	header := func(name, value string) func(r *http.Request) {
		return func(r *http.Request) { token(r); r.Header.Set(name, value) }
	}
	_, all := b.console.Endpoints()
	for _, name := range all {
		for what, test := range map[string]struct {
			values any
			change func(r *http.Request)
			status int
		}{
			"no token":          {map[string]any{}, func(*http.Request) {}, http.StatusForbidden},
			"another site":      {map[string]any{}, header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
			"a form":            {map[string]any{}, header("Content-Type", "text/plain"), http.StatusBadRequest},
			"no object":         {[]int{1}, token, http.StatusBadRequest},
			"an unknown value":  {map[string]any{"consumr": "payments"}, token, http.StatusBadRequest},
			"a value in a list": {map[string]any{"why": []any{[]int{1}}}, token, http.StatusBadRequest},
		} {
			if what == "no token" && name != "note" && name != "stop" { // these first read what is wanted
				test.values = map[string]map[string]any{"change": {"do": "discard", "all": true}, "edit": {"id": 1}, "replay": {"id": 1}}[name]
			}
			if status, body := b.call(http.MethodPost, name, test.values, test.change); status != test.status {
				t.Errorf("%s, %s: %d %v", name, what, status, body)
			}
		}
	}
	if status, _ := b.call(http.MethodPost, "change?all=1", change, token); status != http.StatusBadRequest {
		t.Errorf("values in the address of a change: %d", status)
	}
}

// Whoever may not look gets nothing.
func TestAPIAsksAuthorize(t *testing.T) {
	b := quickBench(t, func(c *console.Config) {
		c.Authorize = func(*http.Request, console.Action) (string, error) { return "", errors.New("no") }
	})
	read, _ := b.console.Endpoints()
	for _, name := range slices.Concat(read, []string{"change?" + url.Values{"do": {"replay"}, "all": {"1"}}.Encode()}) {
		if name == "change" {
			continue
		}
		if name == "edit" {
			name += "?id=1"
		}
		if status, body := b.call(http.MethodGet, name, nil); status != http.StatusForbidden {
			t.Errorf("%s: %d %v", name, status, body)
		}
	}
}
