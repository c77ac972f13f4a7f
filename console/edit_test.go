package console_test

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/testkit"
)

func TestAnEditIsComparedThenStored(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
		require.Equal(t, http.StatusOK, review.StatusCode, review.text)
		assert.Contains(t, review.text, `&#34;amount&#34;: <del>-</del>5`)
		assert.Contains(t, review.text, "fixed")
		assert.Empty(t, b.audits(), "nothing is stored before the confirmation")
		a := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
		require.Equal(t, "entry?id=2", a.Header.Get("Location"), a.text)
		e, err := b.store.Get(t.Context(), 2)
		require.NoError(t, err)
		assert.Equal(t, "{\n  \"amount\": 5\n}\n", string(e.Message.Payload))
		assert.Equal(t, "yes", e.Message.Metadata["fixed"])
		assert.Equal(t, "quarantined", e.State)
		text := b.get("entry?id=2").text
		assert.Contains(t, text, `<a href="entry?id=1">entry 1</a>`)
		assert.Contains(t, strings.Join(b.audits(), "\n"), "negative amount")
		again := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
		assert.Equal(t, http.StatusBadRequest, again.StatusCode)
		assert.Contains(t, again.text, "only quarantined entries can be edited")
	})
}

// What nobody changes stays as it is, whatever the bytes are: a browser sends line ends
// of text areas as CRLF, and drops the first one.
func TestAnEditKeepsEveryByte(t *testing.T) {
	b := quickBench(t, nil)
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
	} {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage(name, []byte(payload))
			m.Metadata["odd"] = "line\r\none & <two>"
			id := b.quarantine("payments", "orders.placed", m, errCard)
			form := b.fields(b.get("edit?id="+itoa(id)), "edit")
			form.Set("why", "because")
			form.Set("keep", "1")
			review := b.do(http.MethodPost, "edit", form)
			require.Equal(t, http.StatusOK, review.StatusCode, review.text)
			assert.Contains(t, review.text, "Payload and metadata are unchanged.")
			// More editing, and comparing again, changes nothing either.
			more := b.fields(review, "edit")
			more.Set("back", "1")
			form = b.fields(b.do(http.MethodPost, "edit", more), "edit")
			review = b.do(http.MethodPost, "edit", form)
			assert.Contains(t, review.text, "Payload and metadata are unchanged.")
			a := b.do(http.MethodPost, "edit", b.fields(review, "edit"))
			require.Equal(t, http.StatusSeeOther, a.StatusCode, a.text)
			e, err := b.store.Get(t.Context(), id+1)
			require.NoError(t, err)
			assert.Equal(t, payload, string(e.Message.Payload))
			assert.Equal(t, "line\r\none & <two>", e.Message.Metadata["odd"])
		})
	}
}

func TestAnEditIsCheckedBeforeItIsStored(t *testing.T) {
	b := quickBench(t, func(c *console.Config) { c.MaxEdit = 1000 })
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(`{"a":1}`)), errCard)
	b.quarantine("payments", "orders.placed", message.NewMessage("large", make([]byte, 1001)), errCard)
	assert.Contains(t, b.do(http.MethodGet, "edit?id=2", nil).text, "1,001 bytes, more than 1,000 bytes")
	for name, c := range map[string]struct {
		field, value, text string
		status             int
	}{
		"too large":        {"payload", strings.Repeat("x", 1001), "more than", http.StatusBadRequest},
		"far too large":    {"payload", strings.Repeat("x", 1<<20), "Too large", http.StatusRequestEntityTooLarge},
		"metadata":         {"metadata", `{"a":1}`, "not a JSON object with texts", http.StatusBadRequest},
		"two objects":      {"metadata", `{} {}`, "more than one", http.StatusBadRequest},
		"an empty name":    {"metadata", `{"":"x"}`, "empty name", http.StatusBadRequest},
		"no reason":        {"why", " ", "Say why", http.StatusBadRequest},
		"hex":              {"as", "hex", "not hexadecimal", http.StatusBadRequest},
		"another id":       {"id", "x", "id is not a number", http.StatusBadRequest},
		"unknown id":       {"id", "77", "No such entry", http.StatusNotFound},
		"no JSON any more": {"payload", "{", "is not valid JSON any more", http.StatusOK},
	} {
		form := b.fields(b.get("edit?id=1"), "edit")
		form.Set("why", "because")
		form.Set(c.field, c.value)
		a := b.do(http.MethodPost, "edit", form)
		assert.Equal(t, c.status, a.StatusCode, name)
		assert.Contains(t, a.text, c.text, name)
	}
	// The confirmation is checked in the same way.
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("why", "because")
	form = b.fields(b.do(http.MethodPost, "edit", form), "edit")
	for _, exact := range []string{"%%%", base64.StdEncoding.EncodeToString(make([]byte, 1001))} {
		form.Set("exact", exact)
		assert.Equal(t, http.StatusBadRequest, b.do(http.MethodPost, "edit", form).StatusCode)
	}
	assert.Empty(t, b.audits())
	assert.Zero(t, b.logs.Count(`{"a":1}`))
}

func TestAnEditIsHandledAtOnceUnlessItIsKept(t *testing.T) {
	b := newBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("one", []byte(`bad`)), errCard)
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("payload", "good")
	form.Set("why", "because")
	review := b.fields(b.do(http.MethodPost, "edit", form), "edit")
	a := b.do(http.MethodPost, "edit", review)
	assert.Equal(t, http.StatusConflict, a.StatusCode)
	assert.Contains(t, a.text, "the consumer is not running")
	done := b.consume(nil)
	assert.Equal(t, http.StatusSeeOther, b.do(http.MethodPost, "edit", review).StatusCode)
	testkit.Eventually(t, 60e9, "the edited message is handled", func() bool { return len(done.all()) == 1 })
	assert.Equal(t, []string{"good"}, done.all())
}
