package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/reconcile"
)

const attack = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}`

func TestTextsOfOthersAreNeverMarkup(t *testing.T) {
	b := newBench(t, func(c *console.Config) {
		c.Authorize = func(*http.Request, console.Action) (string, error) { return attack, nil }
	})
	metadata := message.Metadata{attack: attack}
	b.publish(attack, attack, attack, attack, metadata)
	b.exec(`UPDATE once_outbox SET last_error = $1`, attack)
	b.die(attack, attack, attack, attack, "exhausted", attack)
	b.send(attack, attack, attack)
	m := message.NewMessage(attack, []byte(attack))
	m.Metadata[attack] = attack
	outbox.SetTenant(m, attack)
	id := b.quarantine(attack, attack, m, errors.New(attack))
	b.exec(`UPDATE once_parked SET error_type = $1`, attack)
	b.exec(`INSERT INTO once_replays (state, consumer, filter, plan, total, actor, why, stop_reason, until_id)
		VALUES ('stopped', $1, '{}', '{}', 1, $1, $1, $1, 0)`, attack)
	b.park(attack, attack, attack+"2", attack)
	b.exec(`INSERT INTO once_consumers (consumer, topic, program, handler) VALUES ($1, $1, $1, $1)`, attack)
	b.exec(`INSERT INTO once_consumer_instances (consumer, topic, owner, program, handler) VALUES ($1, $1, $1, $1, $1)`, attack)
	b.exec(`INSERT INTO once_forwarders (owner, destination, lease_until) VALUES ($1, $1, now() + interval '1 hour')`, attack)
	b.exec(`UPDATE once_slots SET owner = $1, lease_until = now() + interval '1 hour' WHERE slot = 1`, attack)
	archive, err := reconcile.NewArchive(b.DB, b.tables)
	require.NoError(t, err)
	require.NoError(t, archive.Keep(t.Context(), reconcile.Report{
		Consumer: attack, Topics: []string{attack}, Missing: []reconcile.Missing{{MessageID: attack, Topic: attack, SentLogID: 1}},
		Phantoms: []reconcile.Phantom{{MessageID: attack, State: reconcile.Quarantined}},
	}))
	b.exec(`INSERT INTO once_audit (actor, action, subject, consumer, message_id, why) VALUES ($1, $1, $1, $1, $1, $1)`, attack)
	query := url.QueryEscape(attack)
	pages := []string{
		"", "outbox", "outbox?topic=" + query, "outbox?state=" + query, "message?id=1", "dead", "dead?group=" + query, "letter?id=1",
		"sent", "copy?id=1", "quarantine", "quarantine?consumer=" + query + "&tenant=" + query, "entry?id=1", "entry?id=1&view=" + query,
		"edit?id=1",
		"replays", "replay?id=1", "forwarders", "consumers", "parked", "parked?consumer=" + query, "parked-message?id=2",
		"life?causes=1&message=" + query, "life?tenant=" + query, "life?aggregate=" + query + "&type=" + query,
		"days", "reconcile", "report?id=1", "audit", "audit?actor=" + query + "&action=" + query, "change?do=cancel-parked&consumer=" + query,
		"change?do=replay&consumer=" + query, "change?do=cancel&topic=" + query, "change?do=discard-dead&topic=" + query,
		"change?do=" + query, "job?id=" + query, query, "payload?of=" + query + "&id=1",
	}
	for _, page := range pages {
		a := b.do(http.MethodGet, page, nil)
		assert.NotContains(t, a.text, "<script>alert", page)
		assert.NotContains(t, a.text, "<img", page)
		assert.Contains(t, a.Header.Get("Content-Security-Policy"), "script-src 'self';", page)
	}
	// The same through a note, through a change and its result, and through an edit.
	group := regexp.MustCompile(`group=([0-9a-f]+)`).FindStringSubmatch(b.get("entry?id=1").text)[1]
	b.do(http.MethodPost, "note", url.Values{"group": {group}, "note": {attack}})
	for _, page := range []string{"quarantine", "quarantine?group=" + group, "entry?id=1"} {
		text := b.get(page).text
		assert.Contains(t, unescape(text), attack, page)
		assert.NotContains(t, text, "<script>alert", page)
	}
	a := b.change("do=cancel&topic="+query+"&force=1", attack)
	assert.NotContains(t, a.text, "<script>alert")
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("why", attack)
	a = b.do(http.MethodPost, "edit", form)
	assert.Contains(t, a.text, "Review")
	assert.NotContains(t, a.text, "<script>alert")
	assert.Positive(t, id)
}

func TestCharactersThatAreNotShownAreWritten(t *testing.T) {
	b := quickBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("a\u202eb", []byte("x\u202ey\x00")), errors.New("zero\u200bwidth"))
	text := b.get("entry?id=1&view=text").text
	assert.Contains(t, text, `a\u202eb`)
	assert.Contains(t, text, `x\u202ey\u0000`)
	assert.Contains(t, text, `zero\u200bwidth`)
	assert.NotContains(t, text, "\u202e")
}

func TestEveryAnswerHasTheHeaders(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	for _, page := range []string{"", "outbox", "nosuch", "console.js", "payload?of=dead&id=1", "entry?id=99", "change?do=replay&all=1"} {
		h := b.do(http.MethodGet, page, nil).Header
		policy := h.Get("Content-Security-Policy")
		assert.True(t, strings.HasPrefix(policy, "default-src 'none';"), page)
		assert.NotContains(t, policy, "unsafe", page)
		assert.Contains(t, policy, "frame-ancestors 'none'", page)
		assert.Equal(t, "DENY", h.Get("X-Frame-Options"), page)
		assert.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), page)
		assert.Equal(t, "no-referrer", h.Get("Referrer-Policy"), page)
		if page != "console.js" {
			assert.Equal(t, "no-store", h.Get("Cache-Control"), page)
		}
	}
	for _, page := range []string{"", "outbox", "entry?id=1", "edit?id=1", "change?do=replay&all=1"} {
		text := b.get(page).text
		assert.NotRegexp(t, `<style|\sstyle=|<script>|\son[a-z]+="`, text, "inline code on %s", page)
	}
}

func TestAnotherSiteCannotChangeAnything(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard-dead&all=1"), "change")
	form.Set("why", "because")
	from := func(origin string) func(r *http.Request) { // of a browser that does not say from which site
		return func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", origin)
		}
	}
	for name, change := range map[string]func(r *http.Request){
		"another site":                       func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"another host of the site":           func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"an old browser":                     from("https://evil.example"),
		"a sandbox":                          from("null"),
		"another port of the same host name": from("http://127.0.0.1:1"),
	} {
		_, forms := b.console.Pages()
		for _, page := range forms {
			a := b.do(http.MethodPost, page, form, change)
			assert.Equal(t, http.StatusForbidden, a.StatusCode, "%s: %s", name, page)
			assert.Contains(t, a.text, "does not come from this page", name)
		}
	}
	assert.Equal(t, 2, b.number(`SELECT COUNT(*) FROM once_outbox_dead`))
	assert.Empty(t, b.audits())
	assert.Equal(t, http.StatusSeeOther, b.do(http.MethodPost, "change", form).StatusCode, "its own page can")
}

func TestAReadingRequestChangesNothing(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard-dead&all=1"), "change")
	form.Set("why", "because")
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		assert.Equal(t, http.StatusOK, b.do(method, "change?"+form.Encode(), nil).StatusCode)
		assert.Equal(t, http.StatusMethodNotAllowed, b.do(method, "stop", nil).StatusCode)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodTrace} {
		a := b.do(method, "change?"+form.Encode(), nil)
		assert.Equal(t, http.StatusMethodNotAllowed, a.StatusCode, method)
		assert.Equal(t, "GET, HEAD, POST", a.Header.Get("Allow"))
	}
	assert.Equal(t, http.StatusMethodNotAllowed, b.do(http.MethodPost, "outbox", form).StatusCode)
	assert.Equal(t, http.StatusMethodNotAllowed, b.do(http.MethodPost, "console.js", form).StatusCode)
	assert.Empty(t, b.audits())
}

func TestAPathLeadsToNoFile(t *testing.T) {
	b := quickBench(t, nil)
	for _, mounted := range []http.Handler{b.server.Config.Handler, b.console, http.StripPrefix("/ops", b.console)} {
		b.server.Config.Handler = mounted
		b.leadsToNoFile(t)
	}
}

func (b *bench) leadsToNoFile(t *testing.T) {
	t.Helper()
	for _, path := range []string{
		"../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "assets/console.css%00", "..%5c..%5cboot.ini", "layout.html",
		"templates/layout.html", "SHA256SUMS", "assets/SHA256SUMS", "htmx.LICENSE", "console.css/", "assets/",
	} {
		a := b.do(http.MethodGet, path, nil)
		answers := []int{http.StatusNotFound, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusOK}
		assert.Contains(t, answers, a.StatusCode, path)
		assert.NotContains(t, a.text, "root:", path)
		if a.StatusCode == http.StatusOK {
			assert.Contains(t, a.text, "Needs a person", path) // a folder is the first page
		}
	}
}

func TestTheFilesOfOthersAreUnchanged(t *testing.T) {
	sums, err := os.ReadFile("assets/SHA256SUMS")
	require.NoError(t, err)
	for line := range strings.SplitSeq(strings.TrimSpace(string(sums)), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		content, err := os.ReadFile("assets/" + name)
		require.NoError(t, err)
		got := sha256.Sum256(content)
		assert.Equal(t, sum, hex.EncodeToString(got[:]), name)
	}
	assert.Len(t, strings.Split(strings.TrimSpace(string(sums)), "\n"), 5)
}

func TestAFileIsCachedByItsSum(t *testing.T) {
	b := quickBench(t, nil)
	text := b.get("").text
	name := regexp.MustCompile(`console\.css\?v=[0-9a-f]+`).FindString(text)
	assert.Contains(t, b.get(name).Header.Get("Cache-Control"), "immutable")
	assert.Equal(t, "no-cache", b.get("console.css?v=old").Header.Get("Cache-Control"), "another version is asked for again")
	assert.Equal(t, "text/css; charset=utf-8", b.get(name).Header.Get("Content-Type"))
}
