package console_test

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

func TestReplayFromDryRunToResult(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		for i := range 12 {
			b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), fmt.Appendf(nil, `{"order":%d}`, i)), errCard)
		}
		done := b.consume(nil)
		page := b.get("change?do=replay&all=1")
		says(t, page.text, "12 messages")
		form := b.fields(page, "change")
		if got := form.Get("consumer"); got != "payments" {
			t.Errorf(`form.Get("consumer") is %q, want "payments": the replay does not keep other consumers from theirs`, got)
		}
		if got := form.Get("canary"); got != "1" {
			t.Errorf(`form.Get("canary") is %q, want "1": a replay begins carefully`, got)
		}
		form.Set("why", "the gateway is back")
		a := b.do(http.MethodPost, "change", form)
		if a.StatusCode != http.StatusSeeOther {
			t.Fatalf("a.StatusCode is %d, want %d\n%s", a.StatusCode, http.StatusSeeOther, a.text)
		}
		kit.Eventually(t, time.Minute, "the replay has ended", func() bool {
			return strings.Contains(b.get("replay?id=1").text, `s-finished`)
		})
		if got := b.do(http.MethodGet, a.Header.Get("Location"), nil).Header.Get("Location"); got != "replay?id=1" {
			t.Errorf(`Get("Location") is %q, want "replay?id=1"`, got)
		}
		text := b.get("replay?id=1").text
		says(t, text, "12 of 12", "the gateway is back", "canary of 1")
		if strings.Contains(text, "hx-get") {
			t.Errorf("%q is there: the result does not change any more:\n%s", "hx-get", text)
		}
		if got := done.all(); len(got) != 12 {
			t.Errorf("len(done.all) is %d, want 12: %q", len(got), got)
		}
		says(t, b.get("replays").text, "replay?id=1")
		says(t, b.get("entry?id=1").text, "resolved")
	})
}

// A failed canary stops the replay, and the replay can be resumed.
func TestAReplayStopsAtAFailureAndIsResumed(t *testing.T) {
	b := newBench(t, nil)
	for i, payload := range []string{"bad", "one", "two"} {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte(payload)), errCard)
	}
	done := b.consume(nil)
	b.change("do=replay&consumer=payments", "try")
	kit.Eventually(t, time.Minute, "the replay has stopped", func() bool {
		return strings.Contains(b.get("replay?id=1").text, `s-stopped`)
	})
	page := b.get("replay?id=1")
	if want := "1 failed again of the canary"; !strings.Contains(page.text, want) {
		t.Errorf("%q is missing:\n%s", want, page.text)
	}
	if got := done.all(); len(got) != 0 {
		t.Errorf("done.all is %q, want none", got)
	}
	says(t, b.get("").text, "Replay 1 is stopped")
	form := b.fields(page, "replay")
	says(t, b.do(http.MethodPost, "replay", form).text, "say why")
	form.Set("why", "the others are fine")
	b.answers(http.StatusSeeOther, http.MethodPost, "replay", form)
	kit.Eventually(t, time.Minute, "the replay has ended", func() bool {
		return strings.Contains(b.get("replay?id=1").text, `s-finished`)
	})
	got := done.all()
	slices.Sort(got)
	if want := []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("done are %q, want %q", got, want)
	}
	form.Set("why", "again")
	kit.Eventually(t, time.Minute, "the change that resumed it has ended, and another one is refused", func() bool {
		return strings.Contains(b.follow(b.do(http.MethodPost, "replay", form)).text, "the replay has finished")
	})
}

func TestARunningReplayIsStoppedByAnybodyWhoMay(t *testing.T) {
	b := newBench(t, nil)
	for i := range 3 {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte("ok")), errCard)
	}
	gate := make(chan struct{})
	done := b.consume(gate)
	b.change("do=replay&consumer=payments", "try")
	kit.Eventually(t, time.Minute, "the canary waits for its handler", func() bool {
		return b.Count("once_parked WHERE state = 'waiting'") == 1
	})
	page := b.get("replay?id=1")
	if !strings.Contains(page.text, "hx-get") {
		t.Errorf("%q is missing: the page is live:\n%s", "hx-get", page.text)
	}
	// The consumer has a running replay.
	form := b.fields(b.get("change?do=replay&consumer=payments"), "change")
	form.Set("why", "me too")
	a := b.do(http.MethodPost, "change", form)
	if a.StatusCode != http.StatusConflict {
		t.Errorf("a.StatusCode is %d, want %d", a.StatusCode, http.StatusConflict)
	}
	if want := "Replay quarantined messages by ann is running"; !strings.Contains(a.text, want) {
		t.Errorf("%q is missing:\n%s", want, a.text)
	}
	a = b.follow(b.do(http.MethodPost, "stop", b.fields(page, "stop")))
	says(t, a.text, "s-paused")
	const reason = "interrupted: stopped in the console by ann"
	says(t, b.get("replay?id=1").text, reason)
	if text := b.get("audit?action=pause").text; !strings.Contains(text, reason+"; reason of the replay: try") {
		t.Errorf("%q is missing in the audit log:\n%s", reason, text)
	}
	close(gate)
	kit.Eventually(t, time.Minute, "the canary is handled", func() bool { return len(done.all()) == 1 })
	if got := b.Count("once_parked WHERE state = 'quarantined'"); got != 2 {
		t.Errorf(`b.Count("once_parked WHERE state = 'quarantined'") is %d, want 2`, got)
	}
}

// The console can stop a replay that another process runs, such as the command line.
func TestAReplayOfAnotherProcessIsStopped(t *testing.T) {
	b := newBench(t, nil)
	for i := range 3 {
		b.quarantine("payments", "orders.placed", message.NewMessage(fmt.Sprint("m", i), []byte("ok")), errCard)
	}
	gate := make(chan struct{})
	b.consume(gate)
	other, err := quarantine.New(b.DB, operate.Config{Schema: b.Config})
	kit.OK(t, err)
	ended := make(chan error)
	go func() {
		act := operate.Act{Actor: "bob", Why: "try"}
		_, err := other.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{Canary: 1})
		ended <- err
	}()
	kit.Eventually(t, time.Minute, "the canary waits for its handler", func() bool {
		return b.Count("once_parked WHERE state = 'waiting'") == 1
	})
	form := b.fields(b.get("replay?id=1"), "stop")
	if got := b.do(http.MethodPost, "stop", form).StatusCode; got != http.StatusBadRequest {
		t.Errorf(`b.do(http.MethodPost, "stop", form).StatusCode is %d, want %d: why is missing`, got, http.StatusBadRequest)
	}
	form.Set("why", "wrong queue")
	a := b.follow(b.do(http.MethodPost, "stop", form))
	says(t, a.text, "s-stopped")
	close(gate)
	if err := <-ended; !errors.Is(err, operate.ErrReplayStopped) {
		t.Fatalf("got %v, want ErrReplayStopped", err)
	}
	if got := b.Count("once_parked WHERE state = 'quarantined'"); got != 2 {
		t.Errorf(`b.Count("once_parked WHERE state = 'quarantined'") is %d, want 2`, got)
	}
}

// absent is what the console says about a consumer that never ran.
func absent(consumer string) string {
	return fmt.Sprintf("the consumer is not running: consumer %q on topic %q was never seen with retry's Subscriber, "+
		"which brings replayed messages; start it first, or set operate.Config.ReplayToAbsent.", consumer, "orders.placed")
}

func TestAReplayToAConsumerThatDoesNotRunIsRefused(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=replay&consumer=payments"), "change")
	form.Set("why", "try")
	job := b.do(http.MethodPost, "change", form).Header.Get("Location")
	var text string
	kit.Eventually(t, time.Minute, "the replay is refused", func() bool {
		text = b.get(job).text
		return strings.Contains(text, "s-abandoned")
	})
	if want := html.EscapeString("Quarantine: replay: " + absent("payments")); !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	if got := b.Count("once_parked WHERE state = 'quarantined'"); got != 4 {
		t.Errorf(`b.Count("once_parked WHERE state = 'quarantined'") is %d, want 4`, got)
	}
}

// Two operators in two processes make the same change of the same message at the same
// time. The change is made once. One operator sees that it was made, and the other
// operator sees that it was not possible any more.
func TestTwoOperatorsOfTwoProcessesAtOnce(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	bob, err := console.Handler(b.DB, console.Config{
		Authorize: func(*http.Request, console.Action) (string, error) { return "bob", nil }, Logger: b.logs,
	})
	kit.OK(t, err)
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
		before := len(b.Audits())
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
		if got := b.Audits(); len(got) != before+rows {
			t.Errorf("%s: %d audits, want %d: %q", query, len(got), before+rows, got)
		}
		done := 0
		for _, a := range answers {
			if strings.Contains(a.text, "1 of 1") || strings.Contains(a.text, "Edited from") {
				done++
				continue
			}
			if !regexp.MustCompile(`Not possible now|Invalid request|0 of 1|s-abandoned|not here any more`).MatchString(a.text) {
				t.Errorf("%s: %s does not match %s",
					query, a.text, `Not possible now|Invalid request|0 of 1|s-abandoned|not here any more`)
			}
		}
		if done != 1 {
			t.Errorf("done is %d, want 1: %s: %s\n%s", done, query, answers[0].text, answers[1].text)
		}
	}
}
