package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
)

// A note on a failure group is shown with the group and with each of its entries, and stays
// for the next failure of the same cause.
func TestANoteStaysWithItsFailureGroup(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		says(t, b.get("quarantine").text, "new: 3 in the last hour")
		group := regexp.MustCompile(`group=([0-9a-f]+)`).FindStringSubmatch(b.get("entry?id=1").text)[1]
		page := "quarantine?group=" + group
		fields := b.fields(b.get(page), "note")
		fields.Set("note", "  the gateway is <b>down</b>,\nticket 17 ")
		a := b.do(http.MethodPost, "note", fields)
		if a.StatusCode != http.StatusSeeOther {
			t.Errorf("a.StatusCode is %d, want %d", a.StatusCode, http.StatusSeeOther)
		}
		if got := a.Header.Get("Location"); got != page {
			t.Errorf(`a.Header.Get("Location") is %q, want %q`, got, page)
		}
		const shown = "the gateway is &lt;b&gt;down&lt;/b&gt;, ticket 17"
		for _, p := range []string{"quarantine", page, "entry?id=1"} {
			if got := b.get(p).text; !strings.Contains(got, shown) {
				t.Errorf("%s: %q is missing:\n%s", p, shown, got)
			}
		}
		hides(t, b.get("entry?id=4").text, shown)
		if got := b.Audits(); len(got) != 1 || !strings.HasPrefix(got[0], "ann | note | group:") ||
			!strings.HasSuffix(got[0], " |  | the gateway is <b>down</b>, ticket 17") {
			t.Errorf("b.Audits are %q, want one for the note", got)
		}

		b.follow(b.change("do=discard&group="+group, "a test"))
		says(t, b.get(page).text, shown)
		says(t, b.get(page).text, "No failure matches.")
		b.do(http.MethodPost, "note", url.Values{"group": {group}, "note": {" "}})
		hides(t, b.get(page).text, shown)
	})
}

func TestABadNoteIsRefused(t *testing.T) {
	b := quickBench(t, nil)
	for name, form := range map[string]url.Values{
		"no group":  {"note": {"x"}},
		"too long":  {"group": {"g"}, "note": {strings.Repeat("x", 501)}},
		"invisible": {"group": {"g"}, "note": {"a\u202eb"}},
		"large id":  {"group": {strings.Repeat("g", 300)}, "note": {"x"}},
	} {
		if got := b.do(http.MethodPost, "note", form).StatusCode; got != http.StatusBadRequest {
			t.Errorf(`%s: b.do(http.MethodPost, "note", form).StatusCode is %d, want %d`, name, got, http.StatusBadRequest)
		}
	}
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
}

// A person without the action NoteGroup does not see the form for notes.
func TestTheNoteFormNeedsItsAction(t *testing.T) {
	b := quickBench(t, func(c *console.Config) { c.Authorize = console.ReadOnly })
	hides(t, b.get("quarantine?group=x").text, "Save the note")
}

// The page of an entry shows a stack if the handler panicked, and no stack if the
// handler returned an error.
func TestThePageOfAPanicShowsItsStack(t *testing.T) {
	b := newBench(t, nil)
	msg := message.NewMessage("boom-1", []byte(`{}`))
	msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed"}))
	store, err := poison.New(b.DB, poison.Config{Schema: b.Config, Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	kit.OK(t, kit.Err(store.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })(msg)))
	b.quarantine("payments", "orders.placed", message.NewMessage("failed-1", nil), errCard)
	const heading = "Stack of the panic"
	if got := b.get("entry?id=1").text; !strings.Contains(got, heading) || !strings.Contains(got, "groups_test.go:") {
		t.Errorf("the page has no stack:\n%s", got)
	}
	hides(t, b.get("entry?id=2").text, heading)
}
