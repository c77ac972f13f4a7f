package console_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
)

// acts maps the query of each page that changes messages to the action that the change
// needs. The changes apply to the messages that seed writes.
var acts = map[string]console.Action{
	"do=retry&all=1":                       console.RetryPending,
	"do=cancel&all=1":                      console.CancelPending,
	"do=pause&topic=mails":                 console.PausePending,
	"do=resume&tenant=globex":              console.ResumePending,
	"do=replay-dead&all=1":                 console.ReplayDead,
	"do=discard-dead&all=1":                console.DiscardDead,
	"do=release&key=customer-9":            console.ReleaseKey,
	"do=replay-sent&id=1":                  console.ReplaySent,
	"do=run-parked&all=1":                  console.RunParked,
	"do=cancel-parked&all=1":               console.CancelParked,
	"do=discard-parked&all=1":              console.DiscardParked,
	"do=replay&all=1":                      console.ReplayQuarantined,
	"do=pause-consumer&consumer=payments":  console.PauseConsumer,
	"do=resume-consumer&consumer=shipping": console.ResumeConsumer,
	"do=discard&all=1":                     console.DiscardQuarantined,
}

// refuses tries all changes, and fails the test unless the console refuses each of
// them.
func (b *bench) refuses(t *testing.T) {
	t.Helper()
	for query := range acts {
		if got := b.do(http.MethodGet, "change?"+query, nil).StatusCode; got != http.StatusForbidden {
			t.Errorf(`%s: b.do(http.MethodGet, "change?"+query, nil).StatusCode is %d, want %d`, query, got, http.StatusForbidden)
		}
		form, err := url.ParseQuery(query + "&limit=10&why=because")
		kit.OK(t, err)
		a := b.do(http.MethodPost, "change", form)
		if a.StatusCode != http.StatusForbidden {
			t.Errorf("%s: a.StatusCode is %d, want %d", query, a.StatusCode, http.StatusForbidden)
		}
		if !strings.Contains(a.text, "you are not allowed to") {
			t.Errorf("%s: %q is missing:\n%s", query, "you are not allowed to", a.text)
		}
	}
	for page, form := range map[string]url.Values{
		"edit":   {"id": {"1"}, "payload": {"{}"}, "metadata": {"{}"}, "why": {"because"}, "confirmed": {"1"}, "exact": {"e30="}},
		"replay": {"id": {"1"}, "why": {"because"}},
		"stop":   {"job": {"x"}},
		"note":   {"group": {"g"}, "note": {"text"}},
	} {
		if got := b.do(http.MethodPost, page, form).StatusCode; got != http.StatusForbidden {
			t.Errorf("%s: b.do(http.MethodPost, page, form).StatusCode is %d, want %d", page, got, http.StatusForbidden)
		}
	}
	b.answers(http.StatusForbidden, http.MethodGet, "edit?id=1", nil)
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
}

func TestReadOnlyShowsEverythingAndChangesNothing(t *testing.T) {
	b := newBench(t, func(c *console.Config) { c.Authorize = console.ReadOnly })
	b.seed()
	for _, page := range []string{
		"", "days", "outbox", "message?id=2", "dead", "letter?id=2", "sent", "copy?id=1", "quarantine", "quarantine?consumer=payments",
		"entry?id=1", "replays", "forwarders", "consumers", "parked", "parked-message?id=5", "trace?message=failed-1", "reconcile", "audit",
	} {
		text := b.get(page).text
		if regexp.MustCompile(`change\?|<button name="do"|method="post"|type="checkbox" name="id"|href="edit`).MatchString(text) {
			t.Errorf("a button on %s: %s matches %s", page, text, `change\?|<button name="do"|method="post"|type="checkbox" name="id"|href="edit`)
		}
	}
	says(t, b.get("entry?id=1").text, "&#34;order&#34;: 10")
	b.refuses(t)
}

func TestNobodyChangesAnythingWithoutAName(t *testing.T) {
	for name, actor := range map[string]string{"empty": "", "spaces": " \t "} {
		t.Run(name, func(t *testing.T) {
			b := quickBench(t, func(c *console.Config) {
				c.Authorize = func(*http.Request, console.Action) (string, error) { return actor, nil }
			})
			b.seed()
			b.get("quarantine")
			b.refuses(t)
			if !b.logs.Has("Console refused an action", "Authorize returned no actor") {
				t.Error(`b.logs.Has("Console refused an action", "Authorize returned no actor") returned false`)
			}
		})
	}
}

func TestAuthorizeThatFailsOrPanicsRefuses(t *testing.T) {
	for name, authorize := range map[string]func(*http.Request, console.Action) (string, error){
		"fails": func(*http.Request, console.Action) (string, error) {
			return "ann", errors.New("the directory is down: secret")
		},
		"panics": func(*http.Request, console.Action) (string, error) { panic("secret") },
	} {
		t.Run(name, func(t *testing.T) {
			b := quickBench(t, func(c *console.Config) { c.Authorize = authorize })
			b.seed()
			pages, _ := b.console.Pages()
			for _, page := range pages {
				a := b.do(http.MethodGet, page+"?id=1&of=dead&do=retry&all=1", nil)
				if a.StatusCode != http.StatusForbidden {
					t.Errorf("%s: a.StatusCode is %d, want %d", page, a.StatusCode, http.StatusForbidden)
				}
				if strings.Contains(a.text, "secret") {
					t.Errorf("%s: %q is there:\n%s", page, "secret", a.text)
				}
				if strings.Contains(a.text, "order") {
					t.Errorf("%s: %q is there:\n%s", page, "order", a.text)
				}
			}
			b.refuses(t)
			if !b.logs.Has("Console refused an action", "secret") {
				t.Error(`b.logs.Has("Console refused an action", "secret") returned false`)
			}
		})
	}
}

// Each change needs its own action, and no other action allows the change.
func TestEachChangeAsksForItsOwnAction(t *testing.T) {
	allowed := console.Look
	b := quickBench(t, func(c *console.Config) {
		c.Authorize = func(_ *http.Request, action console.Action) (string, error) {
			if action != allowed && action.Changes() {
				return "", errors.New("no")
			}
			return "ann", nil
		}
	})
	b.seed()
	got, want := slices.Sorted(maps.Values(acts)), slices.Sorted(slices.Values(b.console.Acts()))
	if !slices.Equal(got, want) {
		t.Errorf("acts are %q, want all of them: %q", got, want)
	}
	for _, allowed = range acts {
		for query, action := range acts {
			want := http.StatusForbidden
			if action == allowed {
				want = http.StatusOK
			}
			if got := b.do(http.MethodGet, "change?"+query, nil).StatusCode; got != want {
				t.Errorf(`%s with %s: b.do(http.MethodGet, "change?"+query, nil).StatusCode is %d, want %d`, query, allowed, got, want)
			}
		}
	}
}

func TestMessagesAreShownOnlyToThoseWhoMayReadThem(t *testing.T) {
	b := quickBench(t, func(c *console.Config) {
		c.Authorize = func(_ *http.Request, action console.Action) (string, error) {
			if action == console.ReadMessage {
				return "", errors.New("no")
			}
			return "ann", nil
		}
	})
	b.seed()
	for _, page := range []string{"message?id=1", "letter?id=1", "copy?id=1", "entry?id=1", "parked-message?id=5"} {
		text := b.get(page).text
		if strings.Contains(text, "order&#34;") {
			t.Errorf("%s: %q is there:\n%s", page, "order&#34;", text)
		}
		if strings.Contains(text, "0af7") {
			t.Errorf("%s: %q is there:\n%s", page, "0af7", text)
		}
		if want := "You are not allowed to: read message"; !strings.Contains(text, want) {
			t.Errorf("%s: %q is missing:\n%s", page, want, text)
		}
	}
	for _, page := range []string{
		"payload?of=outbox&id=1", "payload?of=dead&id=1", "payload?of=sent&id=1", "payload?of=quarantine&id=1",
		"payload?of=parked&id=5", "edit?id=1",
	} {
		if got := b.do(http.MethodGet, page, nil).StatusCode; got != http.StatusForbidden {
			t.Errorf("%s: b.do(http.MethodGet, page, nil).StatusCode is %d, want %d", page, got, http.StatusForbidden)
		}
	}
}

func TestPayloadCanBeRedactedAndForbidden(t *testing.T) {
	b := newBench(t, func(c *console.Config) {
		c.Payload = func(_ *http.Request, topic string, msg *message.Message) (*message.Message, error) {
			switch {
			case topic == "cards":
				return nil, errors.New("card data is not shown")
			case msg.UUID == "boom":
				panic("secret")
			}
			msg.Payload = bytes.ReplaceAll(msg.Payload, []byte("secret"), []byte("…"))
			delete(msg.Metadata, "token")
			return msg, nil
		}
	})
	b.publish("orders.placed", "one", "", `{"pin":"secret"}`, message.Metadata{"token": "secret"})
	m := message.NewMessage("two", []byte(`{"pin":"secret"}`))
	b.quarantine("payments", "orders.placed", m, errCard)
	b.quarantine("payments", "cards", message.NewMessage("three", []byte("secret")), errCard)
	b.quarantine("payments", "orders.placed", message.NewMessage("boom", []byte("secret")), errCard)
	b.quarantine("payments", "orders.placed", message.NewMessage("plain", []byte("hello")), errCard)
	labelled := message.NewMessage("labelled", []byte("hello"))
	labelled.Metadata["token"] = "secret"
	b.quarantine("payments", "orders.placed", labelled, errCard)
	for page, part := range map[string]string{
		"message?id=1": "Parts of this message are hidden", "entry?id=1": "Parts of this message are hidden",
		"entry?id=2": "card data is not shown", "entry?id=3": "Config.Payload panicked", "entry?id=5": "Parts of this message are hidden",
	} {
		text := b.get(page).text
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q is missing:\n%s", page, part, text)
		}
		if strings.Contains(text, "secret") {
			t.Errorf("%s: %q is there:\n%s", page, "secret", text)
		}
		if want := `href="edit`; strings.Contains(text, want) {
			t.Errorf("%s: %q is there:\n%s", page, want, text)
		}
	}
	var payload map[string]string
	kit.OK(t, json.Unmarshal([]byte(b.get("payload?of=quarantine&id=1").text), &payload))
	if want := map[string]string{"pin": "…"}; !maps.Equal(payload, want) {
		t.Errorf("payload is %q, want %q", payload, want)
	}
	b.answers(http.StatusForbidden, http.MethodGet, "payload?of=quarantine&id=2", nil)
	b.answers(http.StatusForbidden, http.MethodGet, "payload?of=quarantine&id=3", nil)
	// A message that is not shown completely cannot be edited, because the hidden parts
	// would be lost.
	b.answers(http.StatusBadRequest, http.MethodGet, "edit?id=1", nil)
	b.answers(http.StatusForbidden, http.MethodGet, "edit?id=2", nil)
	b.answers(http.StatusOK, http.MethodGet, "edit?id=4", nil)
	form := url.Values{"id": {"1"}, "payload": {"{}"}, "metadata": {"{}"}, "why": {"because"}, "confirmed": {"1"}, "exact": {"e30="}}
	b.answers(http.StatusBadRequest, http.MethodPost, "edit", form)
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
	if got := b.logs.Count("pin"); got != 0 {
		t.Errorf(`b.logs.Count("pin") is %d, want 0: a payload is in the log`, got)
	}
}

func TestADownloadIsSavedAndNeverShown(t *testing.T) {
	b := quickBench(t, nil)
	payload := "<script>alert(1)</script>\x00\r\n"
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(payload)), errCard)
	a := b.get("payload?of=quarantine&id=1")
	if a.text != payload {
		t.Errorf("a.text is %q, want %q", a.text, payload)
	}
	if got := a.Header.Get("Content-Type"); got != "application/octet-stream" {
		t.Errorf(`a.Header.Get("Content-Type") is %q, want "application/octet-stream"`, got)
	}
	if got, want := a.Header.Get("Content-Disposition"), `attachment; filename="message-1.bin"`; got != want {
		t.Errorf(`a.Header.Get("Content-Disposition") is %q, want %q`, got, want)
	}
	if got := a.Header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf(`a.Header.Get("X-Content-Type-Options") is %q, want "nosniff"`, got)
	}
}
