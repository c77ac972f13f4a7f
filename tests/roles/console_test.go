package roles

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
)

// fillConsole puts a message into each state that the console changes.
func (w *world) fillConsole() {
	w.Helper()
	quarantine, err := poison.New(w.admin, poison.Config{Schema: tables, Logger: watermill.NopLogger{}})
	kit.OK(w, err)
	for _, id := range []string{"one", "two"} {
		m := message.NewMessage(id, []byte(`{}`))
		m.SetContext(parkedrows.WithDelivery(w.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders"}))
		kit.OK(w, kit.Err(quarantine.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, io.EOF })(m)))
	}
	w.exec(w.admin, `INSERT INTO app.mine_outbox (slot, message_id, topic, payload, metadata, due_at, failing_since)
		VALUES (0, 'backs off', 'orders', '', '{}', now() + interval '1 hour', now()),
		       (0, 'cancelled', 'orders', '', '{}', now() + interval '1 hour', NULL)`)
	w.exec(w.admin, `INSERT INTO app.mine_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts,
		last_error, reason, unknown) SELECT n, 'dead ' || n, 'orders', 'key ' || n, '', '{}', now(), 1, 'no queue', 'exhausted', false
		FROM generate_series(1, 3) AS n`)
	w.exec(w.admin, `INSERT INTO app.mine_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('key 3', 3, 3, 'dead')`)
	w.exec(w.admin, `INSERT INTO app.mine_outbox_sent (position, message_id, topic, payload, metadata, created_at)
		VALUES (9, 'sent', 'orders', '', '{}', now())`)
	w.exec(w.admin, `INSERT INTO app.mine_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'mail', 'orders', 'parked ' || n, '', '', 'waiting', now() + interval '1 hour' FROM generate_series(1, 3) AS n`)
}

// consoleForms contains the forms of the console with their values, and the pages to which they are
// sent.
var consoleForms = []struct{ page, form string }{
	{"change", "do=retry&state=backing_off&topic=orders"},
	{"change", "do=cancel&id=2"},
	{"change", "do=replay-dead&id=1"},
	{"change", "do=discard-dead&id=2"},
	{"change", "do=release&key=key+3"},
	{"change", "do=replay-sent&id=1"},
	{"change", "do=run-parked&id=3"},
	{"change", "do=cancel-parked&id=4"},
	{"change", "do=discard-parked&id=5"},
	{"change", "do=discard&id=2"},
	{"edit", "id=1&confirmed=1&exact=e30%3D&metadata=%7B%7D&keep=1"},
	{"note", "group=g&note=text"},
}

// consolePages contains the pages of the console.
var consolePages = []string{
	"", "days", "outbox", "message?id=1", "dead", "letter?id=1", "sent", "copy?id=1", "quarantine", "entry?id=1", "edit?id=1",
	"forwarders", "consumers", "parked", "parked-message?id=1", "trace?message=one", "reconcile", "audit", "replays",
	"payload?of=quarantine&id=1",
}

// openConsole serves the console with the rights of a part. ask requests a page, and returns its
// status and text.
func (w *world) openConsole(part string) (ask func(method, page string, form url.Values) (int, string)) {
	w.Helper()
	pages, err := console.Handler(w.open(new(recorder), part), console.Config{
		Schema: tables, Logger: kit.Logger(w), Authorize: func(*http.Request, console.Action) (string, error) { return "ann", nil },
	})
	kit.OK(w, err)
	w.Cleanup(func() { _ = pages.Close() })
	return func(method, page string, form url.Values) (int, string) {
		r := httptest.NewRequestWithContext(w.Context(), method, "/"+page, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		answer := httptest.NewRecorder()
		pages.ServeHTTP(answer, r)
		if to := answer.Header().Get("Location"); to != "" {
			r = httptest.NewRequestWithContext(w.Context(), http.MethodGet, "/"+to, nil)
			answer = httptest.NewRecorder()
			pages.ServeHTTP(answer, r)
		}
		return answer.Code, answer.Body.String()
	}
}

// send sends all forms. For each form it calls the function each, with the form and the
// text of the returned page.
func (w *world) send(ask func(method, page string, form url.Values) (int, string), each func(form, text string)) {
	w.Helper()
	for _, f := range consoleForms {
		form, err := url.ParseQuery(f.form)
		kit.OK(w, err)
		form.Set("why", "because")
		form.Set("limit", "1")
		_, text := ask(http.MethodPost, f.page, form)
		each(f.form, text)
	}
}

// A console with the role of an operator shows and changes everything.
func TestConsoleOfAnOperator(t *testing.T) {
	w := newWorld(t)
	w.fillConsole()
	ask := w.openConsole("operator")
	for _, page := range consolePages {
		if status, text := ask(http.MethodGet, page, nil); status != http.StatusOK {
			t.Errorf("%s: status %d\n%s", page, status, text)
		}
	}
	w.send(ask, func(form, text string) {
		if strings.Contains(text, "lacks a right") || strings.Contains(form, "do=") && !strings.Contains(text, "1 of 1") {
			t.Errorf("%s:\n%s", form, text)
		}
	})
	if n := w.number(`SELECT COUNT(*) FROM app.mine_audit`); n != len(consoleForms)+1 { // an edit has two rows
		t.Errorf("%d rows of the audit log", n)
	}
}

// A console with the role of a watcher changes nothing, even if its Authorize allows it. Pages that
// show no contents of messages work, and the other pages say which right is missing.
func TestConsoleOfAWatcher(t *testing.T) {
	w := newWorld(t)
	w.fillConsole()
	ask := w.openConsole("watcher")
	for _, page := range consolePages {
		status, text := ask(http.MethodGet, page, nil)
		t.Logf("%q: %d", page, status)
		if status != http.StatusOK && !strings.Contains(text, "lacks a right") {
			t.Errorf("%s: status %d\n%s", page, status, text)
		}
	}
	for _, page := range []string{"days", "forwarders", "consumers", "reconcile", "audit", "replays"} {
		if status, text := ask(http.MethodGet, page, nil); status != http.StatusOK {
			t.Errorf("%s: status %d\n%s", page, status, text)
		}
	}
	w.send(ask, func(form, text string) {
		if !strings.Contains(text, "lacks a right") {
			t.Errorf("%s:\n%s", form, text)
		}
	})
	if n := w.number(`SELECT COUNT(*) FROM app.mine_audit`); n != 0 {
		t.Errorf("%d rows of the audit log", n)
	}
}
