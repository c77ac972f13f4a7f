package console_test

import (
	"encoding/base64"
	"html"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
)

func TestAnEditIsComparedThenStored(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := benchIn(t, db, nil)
		m := message.NewMessage("one", []byte("{\n  \"amount\": -5\n}\n"))
		m.Metadata["trace"] = "0af7"
		b.quarantine("payments", "orders.placed", m, errCard)
		form := b.fields(b.get("edit?id=1"), "edit")
		form.Set("payload", strings.Replace(form.Get("payload"), "-5", "5", 1))
		form.Set("metadata", `{"trace": "0af7", "fixed": "yes"}`)
		form.Set("why", "negative amount")
		form.Set("keep", "1")
		review := b.do(http.MethodPost, "edit", form)
		if review.StatusCode != http.StatusOK {
			t.Fatalf("review.StatusCode is %d, want %d\n%s", review.StatusCode, http.StatusOK, review.text)
		}
		if want := `&#34;amount&#34;: <del>-</del>5`; !strings.Contains(review.text, want) {
			t.Errorf("%q is missing:\n%s", want, review.text)
		}
		says(t, review.text, "fixed")
		if got := b.Audits(); len(got) != 0 {
			t.Errorf("b.Audits are %q, want none: nothing is stored before the confirmation", got)
		}
		a := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
		if got := a.Header.Get("Location"); got != "entry?id=2" {
			t.Fatalf("a.Header.Get(\"Location\") is %q, want \"entry?id=2\"\n%s", got, a.text)
		}
		e, err := b.store.Get(t.Context(), 2)
		kit.OK(t, err)
		if want := "{\n  \"amount\": 5\n}\n"; string(e.Message.Payload) != want {
			t.Errorf("e.Message.Payload is %q, want %q", string(e.Message.Payload), want)
		}
		if e.Message.Metadata["fixed"] != "yes" {
			t.Errorf(`e.Message.Metadata["fixed"] is %q, want "yes"`, e.Message.Metadata["fixed"])
		}
		if e.State != "quarantined" {
			t.Errorf(`e.State is %q, want "quarantined"`, e.State)
		}
		text := b.get("entry?id=2").text
		if want := `<a href="entry?id=1">entry 1</a>`; !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
		says(t, strings.Join(b.Audits(), "\n"), "negative amount")
		again := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
		if again.StatusCode != http.StatusBadRequest {
			t.Errorf("again.StatusCode is %d, want %d", again.StatusCode, http.StatusBadRequest)
		}
		if want := "only quarantined entries can be edited"; !strings.Contains(again.text, want) {
			t.Errorf("%q is missing:\n%s", want, again.text)
		}
	})
}

// An edit keeps the bytes that nobody changes, whatever they are. A browser sends the
// line ends of text areas as CRLF, and drops a line end at the beginning.
func TestAnEditKeepsEveryByte(t *testing.T) {
	kit.Long(t)
	const largest = 1 << 20
	b := quickBench(t, func(c *console.Config) { c.MaxEdit = largest })
	for name, payload := range map[string]string{
		"text":              "a\nb",
		"empty":             "",
		"leading newline":   "\n\na",
		"trailing newlines": "a\n\n",
		"carriage return":   "a\r\nb\r",
		"zero":              "a\x00b",
		"binary":            "\xff\xfe\x00\x01",
		"tab":               "\ta\t",
		"markup":            "</textarea><script>",
		"entity":            "&amp;&lt;",
		"replacement":       "a\uFFFDb",
		"bom":               "\uFEFFa",
		"emoji":             "😀",
		"separator":         "a\u2028b\u0085c",
		"long":              strings.Repeat("0123456789abcdef\n", 200),
		"json":              `{"html":"<b>&</b>","n":1.0}`,
		"largest":           strings.Repeat("\xfb\xef\xbe", largest/3) + "\xff", // its form is as large as possible
	} {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage(name, []byte(payload))
			m.Metadata["odd"] = "line\r\none & <two>"
			id := b.quarantine("payments", "orders.placed", m, errCard)
			form := b.fields(b.get("edit?id="+itoa(id)), "edit")
			form.Set("why", "because")
			form.Set("keep", "1")
			review := b.do(http.MethodPost, "edit", form)
			if review.StatusCode != http.StatusOK {
				t.Fatalf("review.StatusCode is %d, want %d\n%s", review.StatusCode, http.StatusOK, review.text)
			}
			if want := "Payload and metadata are unchanged."; !strings.Contains(review.text, want) {
				t.Errorf("%q is missing:\n%s", want, review.text)
			}
			// If the person goes back to the form and compares again, nothing changes
			// either.
			more := b.fields(review, "edit")
			more.Set("back", "1")
			form = b.fields(b.do(http.MethodPost, "edit", more), "edit")
			review = b.do(http.MethodPost, "edit", form)
			if want := "Payload and metadata are unchanged."; !strings.Contains(review.text, want) {
				t.Errorf("%q is missing:\n%s", want, review.text)
			}
			a := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
			if a.StatusCode != http.StatusSeeOther {
				t.Fatalf("a.StatusCode is %d, want %d\n%s", a.StatusCode, http.StatusSeeOther, a.text)
			}
			e, err := b.store.Get(t.Context(), id+1)
			kit.OK(t, err)
			if string(e.Message.Payload) != payload {
				t.Errorf("e.Message.Payload is %.1000q, want %.1000q", string(e.Message.Payload), payload)
			}
			if want := "line\r\none & <two>"; e.Message.Metadata["odd"] != want {
				t.Errorf(`e.Message.Metadata["odd"] is %q, want %q`, e.Message.Metadata["odd"], want)
			}
		})
	}
}

func TestAnEditIsCheckedBeforeItIsStored(t *testing.T) {
	b := quickBench(t, func(c *console.Config) { c.MaxEdit = 1000 })
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(`{"a":1}`)), errCard)
	b.quarantine("payments", "orders.placed", message.NewMessage("large", make([]byte, 1001)), errCard)
	if got, want := b.do(http.MethodGet, "edit?id=2", nil).text, "1,001 bytes, more than 1,000 bytes"; !strings.Contains(got, want) {
		t.Errorf("%q is missing:\n%s", want, got)
	}
	for name, c := range map[string]struct {
		field, value, text string
		status             int
	}{
		"too large":        {"payload", strings.Repeat("x", 1001), "more than", http.StatusBadRequest},
		"far too large":    {"payload", strings.Repeat("x", 1<<20), "Too large", http.StatusRequestEntityTooLarge},
		"metadata":         {"metadata", `{"a":1}`, "not a JSON object of strings", http.StatusBadRequest},
		"two objects":      {"metadata", `{} {}`, "more than one", http.StatusBadRequest},
		"an empty name":    {"metadata", `{"":"x"}`, "empty name", http.StatusBadRequest},
		"no reason":        {"why", " ", "Say why", http.StatusBadRequest},
		"hex":              {"as", "hex", "not hexadecimal", http.StatusBadRequest},
		"another id":       {"id", "x", "id is not a number", http.StatusBadRequest},
		"unknown id":       {"id", "77", "not here any more", http.StatusNotFound},
		"no JSON any more": {"payload", "{", "is not valid JSON any more", http.StatusOK},
	} {
		form := b.fields(b.get("edit?id=1"), "edit")
		form.Set("why", "because")
		form.Set(c.field, c.value)
		a := b.do(http.MethodPost, "edit", form)
		if a.StatusCode != c.status {
			t.Errorf("%s: a.StatusCode is %d, want %d", name, a.StatusCode, c.status)
		}
		if !strings.Contains(a.text, c.text) {
			t.Errorf("%s: %q is missing:\n%s", name, c.text, a.text)
		}
	}
	// The confirmation is checked in the same way.
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("why", "because")
	form = b.fields(b.do(http.MethodPost, "edit", form), "edit")
	for _, exact := range []string{"%%%", base64.StdEncoding.EncodeToString(make([]byte, 1001))} {
		form.Set("exact", exact)
		b.answers(http.StatusBadRequest, http.MethodPost, "edit", form)
	}
	form.Set("exact", "e30=")
	for value, status := range map[string]int{"false": http.StatusOK, "no": http.StatusBadRequest} { // false only compares
		form.Set("confirmed", value)
		b.answers(status, http.MethodPost, "edit", form)
	}
	form.Set("confirmed", "1")
	form.Del("exact")
	a := b.do(http.MethodPost, "edit", form)
	if a.StatusCode != http.StatusBadRequest {
		t.Errorf("without exact: a.StatusCode is %d, want %d", a.StatusCode, http.StatusBadRequest)
	}
	says(t, a.text, html.EscapeString(`"confirmed" needs "exact"`))
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
	if got := b.logs.Count(`{"a":1}`); got != 0 {
		t.Errorf("b.logs.Count is %d, want 0", got)
	}
}

func TestAnEditIsHandledAtOnceUnlessItIsKept(t *testing.T) {
	b := newBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(`bad`)), errCard)
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("payload", "good")
	form.Set("why", "because")
	review := b.fields(b.do(http.MethodPost, "edit", form), "edit")
	a := b.do(http.MethodPost, "edit", review)
	if a.StatusCode != http.StatusConflict {
		t.Errorf("a.StatusCode is %d, want %d", a.StatusCode, http.StatusConflict)
	}
	if want := html.EscapeString("quarantine: edit 1: " + absent("payments")); !strings.Contains(a.text, want) {
		t.Errorf("%q is missing:\n%s", want, a.text)
	}
	done := b.consume(nil)
	b.answers(http.StatusSeeOther, http.MethodPost, "edit", review)
	kit.Eventually(t, 60e9, "the edited message is handled", func() bool { return len(done.all()) == 1 })
	if got, want := done.all(), []string{"good"}; !slices.Equal(got, want) {
		t.Errorf("done.all is %q, want %q", got, want)
	}
}
