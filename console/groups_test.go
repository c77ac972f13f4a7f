package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/testkit"
)

// A note on a failure group is shown with the group and with each of its entries, and stays
// for the next failure of the same cause.
func TestANoteStaysWithItsFailureGroup(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := benchIn(t, db, nil)
		b.seed()
		assert.Contains(t, b.get("quarantine").text, "new: 3 in the last hour")
		group := regexp.MustCompile(`group=([0-9a-f]+)`).FindStringSubmatch(b.get("entry?id=1").text)[1]
		page := "quarantine?group=" + group
		fields := b.fields(b.get(page), "note")
		fields.Set("note", "  the gateway is <b>down</b>,\nticket 17 ")
		a := b.do(http.MethodPost, "note", fields)
		assert.Equal(t, http.StatusSeeOther, a.StatusCode)
		assert.Equal(t, page, a.Header.Get("Location"))
		const shown = "the gateway is &lt;b&gt;down&lt;/b&gt;, ticket 17"
		for _, p := range []string{"quarantine", page, "entry?id=1"} {
			assert.Contains(t, b.get(p).text, shown, p)
		}
		assert.NotContains(t, b.get("entry?id=4").text, shown)
		assert.Equal(t, []string{"ann | note |  | the gateway is <b>down</b>, ticket 17"}, b.audits())

		b.follow(b.change("do=discard&group="+group, "a test"))
		assert.Contains(t, b.get(page).text, shown)
		assert.Contains(t, b.get(page).text, "No failure matches.")
		b.do(http.MethodPost, "note", url.Values{"group": {group}, "note": {" "}})
		assert.NotContains(t, b.get(page).text, shown)
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
		assert.Equal(t, http.StatusBadRequest, b.do(http.MethodPost, "note", form).StatusCode, name)
	}
	assert.Empty(t, b.audits())
}

// Who may not leave notes sees no form.
func TestTheNoteFormNeedsItsAction(t *testing.T) {
	b := quickBench(t, func(c *console.Config) { c.Authorize = console.ReadOnly })
	assert.NotContains(t, b.get("quarantine?group=x").text, "Save the note")
}
