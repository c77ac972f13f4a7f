package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/watermill-once/once/console"
)

// Two operators in two processes make the same change of the same message at the same
// time. The change is made once. One operator sees that it was made, and the other
// operator sees that it was not possible any more.
func TestTwoOperatorsOfTwoProcessesAtOnce(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	bob, err := console.Handler(b.DB, console.Config{
		Authorize: func(*http.Request, console.Action) (string, error) { return "bob", nil }, Logger: b.logs,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer bob.Close()
	other := httptest.NewServer(bob)
	defer other.Close()
	edit := b.fields(b.get("edit?id=1"), "edit")
	edit.Set("payload", "{}")
	edit.Set("keep", "1")
	edit.Set("why", "because")
	edit = b.fields(b.do(http.MethodPost, "edit", edit), "edit")
	for query, page := range map[string]string{
		"do=cancel&id=4": "change", "do=discard-dead&id=1": "change", "do=release&key=customer-9": "change",
		"do=cancel-parked&id=6": "change", "do=discard-parked&id=5": "change", "do=discard&id=4": "change", "id=1": "edit",
	} {
		form, rows := edit, 2 // audit rows: for the old and for the new message
		if page == "change" {
			rows = 1
			form = b.fields(b.get("change?"+query), "change")
			form.Set("why", "because")
		}
		before := len(b.audits())
		var (
			group   sync.WaitGroup
			answers [2]answer
		)
		for i, server := range []string{b.server.URL + b.prefix, other.URL + "/"} {
			group.Go(func() {
				to := func(r *http.Request) { r.URL, _ = url.Parse(server + page); r.Host = r.URL.Host }
				answers[i] = b.do(http.MethodPost, page, form, to)
				for answers[i].StatusCode == http.StatusSeeOther {
					next := answers[i].Header.Get("Location")
					answers[i] = b.do(http.MethodGet, next, nil, func(r *http.Request) { r.URL, _ = url.Parse(server + next); r.Host = r.URL.Host })
				}
			})
		}
		group.Wait()
		if got := b.audits(); len(got) != before+rows {
			t.Errorf("%s: %d audits, want %d: %q", query, len(got), before+rows, got)
		}
		done := 0
		for _, a := range answers {
			if strings.Contains(a.text, "1 of 1") || strings.Contains(a.text, "Edited from") {
				done++
				continue
			}
			if !regexp.MustCompile(`Not possible now|Invalid request|0 of 1|s-abandoned|not here any more|No such entry`).MatchString(a.text) {
				t.Errorf("%s: %s does not match %s",
					query, a.text, `Not possible now|Invalid request|0 of 1|s-abandoned|not here any more|No such entry`)
			}
		}
		if done != 1 {
			t.Errorf("done is %d, want 1: %s: %s\n%s", done, query, answers[0].text, answers[1].text)
		}
	}
}
