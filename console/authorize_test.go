package console_test

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/console"
)

// acts are all changes of the messages of seed, as query of their page, with the action
// that they need.
var acts = map[string]console.Action{
	"do=retry&all=1":            console.RetryPending,
	"do=cancel&all=1":           console.CancelPending,
	"do=replay-dead&all=1":      console.ReplayDead,
	"do=discard-dead&all=1":     console.DiscardDead,
	"do=release&key=customer-9": console.ReleaseKey,
	"do=replay-sent&id=1":       console.ReplaySent,
	"do=run-parked&all=1":       console.RunParked,
	"do=cancel-parked&all=1":    console.CancelParked,
	"do=discard-parked&all=1":   console.DiscardParked,
	"do=replay&all=1":           console.ReplayQuarantined,
	"do=discard&all=1":          console.DiscardQuarantined,
}

// refuses tries all changes and expects that none is made.
func (b *bench) refuses(t *testing.T) {
	t.Helper()
	for query := range acts {
		assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, "change?"+query, nil).StatusCode, query)
		form, err := url.ParseQuery(query + "&limit=10&why=because")
		require.NoError(t, err)
		a := b.do(http.MethodPost, "change", form)
		assert.Equal(t, http.StatusForbidden, a.StatusCode, query)
		assert.Contains(t, a.text, "you may not", query)
	}
	for page, form := range map[string]url.Values{
		"edit":   {"id": {"1"}, "payload": {"{}"}, "metadata": {"{}"}, "why": {"because"}, "confirmed": {"1"}, "exact": {"e30="}},
		"replay": {"id": {"1"}, "why": {"because"}},
		"stop":   {"job": {"x"}},
		"note":   {"group": {"g"}, "note": {"text"}},
	} {
		assert.Equal(t, http.StatusForbidden, b.do(http.MethodPost, page, form).StatusCode, page)
	}
	assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, "edit?id=1", nil).StatusCode)
	assert.Empty(t, b.audits())
}

func TestReadOnlyShowsEverythingAndChangesNothing(t *testing.T) {
	b := newBench(t, func(c *console.Config) { c.Authorize = console.ReadOnly })
	b.seed()
	for _, page := range []string{
		"", "days", "outbox", "message?id=2", "dead", "letter?id=2", "sent", "copy?id=1", "quarantine", "quarantine?consumer=payments",
		"entry?id=1", "replays", "forwarders", "consumers", "parked", "parked-message?id=5", "life?message=failed-1", "reconcile", "audit",
	} {
		text := b.get(page).text
		assert.NotRegexp(t, `change\?|<button name="do"|method="post"|type="checkbox" name="id"|href="edit`, text, "a button on %s", page)
	}
	assert.Contains(t, b.get("entry?id=1").text, "&#34;order&#34;: 10")
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
			assert.True(t, b.logs.Has("Console refused an action", "Authorize returned no actor"))
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
				assert.Equal(t, http.StatusForbidden, a.StatusCode, page)
				assert.NotContains(t, a.text, "secret", page)
				assert.NotContains(t, a.text, "order", page)
			}
			b.refuses(t)
			assert.True(t, b.logs.Has("Console refused an action", "secret"))
		})
	}
}

// Each change needs its own action, and no other one allows it.
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
	assert.ElementsMatch(t, b.console.Acts(), slices.Collect(maps.Values(acts)), "acts has all of them")
	for _, allowed = range acts {
		for query, action := range acts {
			want := http.StatusForbidden
			if action == allowed {
				want = http.StatusOK
			}
			assert.Equal(t, want, b.do(http.MethodGet, "change?"+query, nil).StatusCode, "%s with %s", query, allowed)
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
		assert.NotContains(t, text, "order&#34;", page)
		assert.NotContains(t, text, "0af7", page)
		assert.Contains(t, text, "You may not: read message", page)
	}
	for _, page := range []string{
		"payload?of=outbox&id=1", "payload?of=dead&id=1", "payload?of=sent&id=1", "payload?of=quarantine&id=1",
		"payload?of=parked&id=5", "edit?id=1",
	} {
		assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, page, nil).StatusCode, page)
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
	for page, part := range map[string]string{
		"message?id=1": "Parts of this message are hidden", "entry?id=1": "Parts of this message are hidden",
		"entry?id=2": "card data is not shown", "entry?id=3": "Config.Payload panicked",
	} {
		text := b.get(page).text
		assert.Contains(t, text, part, page)
		assert.NotContains(t, text, "secret", page)
		assert.NotContains(t, text, `href="edit`, page)
	}
	assert.JSONEq(t, `{"pin":"…"}`, b.get("payload?of=quarantine&id=1").text)
	assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, "payload?of=quarantine&id=2", nil).StatusCode)
	assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, "payload?of=quarantine&id=3", nil).StatusCode)
	// A message that is shown with gaps cannot be edited, because the gaps would be stored.
	assert.Equal(t, http.StatusBadRequest, b.do(http.MethodGet, "edit?id=1", nil).StatusCode)
	assert.Equal(t, http.StatusForbidden, b.do(http.MethodGet, "edit?id=2", nil).StatusCode)
	assert.Equal(t, http.StatusOK, b.do(http.MethodGet, "edit?id=4", nil).StatusCode)
	form := url.Values{"id": {"1"}, "payload": {"{}"}, "metadata": {"{}"}, "why": {"because"}, "confirmed": {"1"}, "exact": {"e30="}}
	assert.Equal(t, http.StatusBadRequest, b.do(http.MethodPost, "edit", form).StatusCode)
	assert.Empty(t, b.audits())
	assert.Zero(t, b.logs.Count("pin"), "a payload is in the log")
}

func TestADownloadIsSavedAndNeverShown(t *testing.T) {
	b := quickBench(t, nil)
	payload := "<script>alert(1)</script>\x00\r\n"
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(payload)), errCard)
	a := b.get("payload?of=quarantine&id=1")
	assert.Equal(t, payload, a.text)
	assert.Equal(t, "application/octet-stream", a.Header.Get("Content-Type"))
	assert.Equal(t, `attachment; filename="message-1.bin"`, a.Header.Get("Content-Disposition"))
	assert.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
}
