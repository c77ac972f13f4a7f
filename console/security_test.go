package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/outbox"
)

const attack = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}`

func TestTextsOfOthersAreNeverMarkup(t *testing.T) {
	b := newBench(t, func(c *console.Config) {
		c.Authorize = func(*http.Request, console.Action) (string, error) { return attack, nil }
	})
	metadata := message.Metadata{attack: attack}
	b.publish(attack, attack, attack, attack, metadata)
	b.Exec(`UPDATE once_outbox SET last_error = $1`, attack)
	b.die(attack, attack, attack, attack, "exhausted", attack)
	b.send(attack, attack, attack)
	m := message.NewMessage(attack, []byte(attack))
	m.Metadata[attack] = attack
	outbox.SetTenant(m, attack)
	id := b.quarantine(attack, attack, m, errors.New(attack))
	b.Exec(`UPDATE once_parked SET error_type = $1`, attack)
	b.Exec(`INSERT INTO once_replays (state, consumer, filter, plan, total, actor, why, stop_reason, until_id)
		VALUES ('stopped', $1, '{}', '{}', 1, $1, $1, $1, 0)`, attack)
	b.park(attack, attack, attack+"2", attack)
	b.Exec(`INSERT INTO once_consumers (consumer, topic, program, handler) VALUES ($1, $1, $1, $1)`, attack)
	b.Exec(`INSERT INTO once_consumer_instances (consumer, topic, owner, program, handler) VALUES ($1, $1, $1, $1, $1)`, attack)
	b.Exec(`INSERT INTO once_forwarders (owner, destination, lease_until) VALUES ($1, $1, now() + interval '1 hour')`, attack)
	b.Exec(`UPDATE once_slots SET owner = $1, lease_until = now() + interval '1 hour' WHERE slot = 1`, attack)
	archive, err := reconcile.NewArchive(b.DB, b.Config)
	kit.OK(t, err)
	kit.OK(t, archive.Keep(t.Context(), reconcile.Report{
		Consumer: attack, Topics: []string{attack}, Missing: []reconcile.Missing{{MessageID: attack, Topic: attack, SentLogID: 1}},
		Phantoms: []reconcile.Phantom{{MessageID: attack, State: "quarantined"}},
	}))
	b.Exec(`INSERT INTO once_audit (actor, action, subject, consumer, message_id, why) VALUES ($1, $1, $1, $1, $1, $1)`, attack)
	query := url.QueryEscape(attack)
	pages := []string{
		"", "outbox", "outbox?topic=" + query, "outbox?state=" + query, "message?id=1", "dead", "dead?group=" + query, "letter?id=1",
		"sent", "copy?id=1", "quarantine", "quarantine?consumer=" + query + "&tenant=" + query, "entry?id=1", "entry?id=1&view=" + query,
		"edit?id=1",
		"replays", "replay?id=1", "forwarders", "consumers", "parked", "parked?consumer=" + query, "parked-message?id=2",
		"trace?causes=1&message=" + query, "trace?tenant=" + query, "trace?aggregate=" + query + "&type=" + query,
		"days", "reconcile", "report?id=1", "audit", "audit?actor=" + query + "&action=" + query, "change?do=cancel-parked&consumer=" + query,
		"change?do=replay&consumer=" + query, "change?do=cancel&topic=" + query, "change?do=discard-dead&topic=" + query,
		"change?do=" + query, "job?id=" + query, query, "payload?of=" + query + "&id=1",
	}
	for _, page := range pages {
		a := b.do(http.MethodGet, page, nil)
		if strings.Contains(a.text, "<script>alert") {
			t.Errorf("%s: %q is there:\n%s", page, "<script>alert", a.text)
		}
		if strings.Contains(a.text, "<img") {
			t.Errorf("%s: %q is there:\n%s", page, "<img", a.text)
		}
		if got := a.Header.Get("Content-Security-Policy"); !strings.Contains(got, "script-src 'self';") {
			t.Errorf("%s: %q is missing:\n%s", page, "script-src 'self';", got)
		}
	}
	// The same texts arrive through a note, through a change and its result, and
	// through an edit.
	group := regexp.MustCompile(`group=([0-9a-f]+)`).FindStringSubmatch(b.get("entry?id=1").text)[1]
	b.do(http.MethodPost, "note", url.Values{"group": {group}, "note": {attack}})
	for _, page := range []string{"quarantine", "quarantine?group=" + group, "entry?id=1"} {
		text := b.get(page).text
		if got := unescape(text); !strings.Contains(got, attack) {
			t.Errorf("%s: %q is missing:\n%s", page, attack, got)
		}
		if strings.Contains(text, "<script>alert") {
			t.Errorf("%s: %q is there:\n%s", page, "<script>alert", text)
		}
	}
	a := b.change("do=cancel&topic="+query+"&force=1", attack)
	hides(t, a.text, "<script>alert")
	form := b.fields(b.get("edit?id=1"), "edit")
	form.Set("why", attack)
	a = b.do(http.MethodPost, "edit", form)
	says(t, a.text, "Review")
	hides(t, a.text, "<script>alert")
	if id <= 0 {
		t.Errorf("id is %d, want more than 0", id)
	}
}

func TestCharactersThatAreNotShownAreWritten(t *testing.T) {
	b := quickBench(t, nil)
	b.quarantine("payments", "orders.placed", message.NewMessage("a\u202eb", []byte("x\u202ey\x00")), errors.New("zero\u200bwidth"))
	text := b.get("entry?id=1&view=text").text
	if want := `a\u202eb`; !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	if want := `x\u202ey\u0000`; !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	if want := `zero\u200bwidth`; !strings.Contains(text, want) {
		t.Errorf("%q is missing:\n%s", want, text)
	}
	hides(t, text, "\u202e")
}

func TestEveryAnswerHasTheHeaders(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	for _, page := range []string{"", "outbox", "nosuch", "console.js", "payload?of=dead&id=1", "entry?id=99", "change?do=replay&all=1"} {
		h := b.do(http.MethodGet, page, nil).Header
		policy := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") {
			t.Errorf("%s: %q does not begin with %q", page, policy, "default-src 'none';")
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %q is there:\n%s", page, "unsafe", policy)
		}
		if !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: %q is missing:\n%s", page, "frame-ancestors 'none'", policy)
		}
		if got := h.Get("X-Frame-Options"); got != "DENY" {
			t.Errorf(`%s: h.Get("X-Frame-Options") is %q, want "DENY"`, page, got)
		}
		if got := h.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf(`%s: h.Get("X-Content-Type-Options") is %q, want "nosniff"`, page, got)
		}
		if got := h.Get("Referrer-Policy"); got != "no-referrer" {
			t.Errorf(`%s: h.Get("Referrer-Policy") is %q, want "no-referrer"`, page, got)
		}
		if page != "console.js" {
			if got := h.Get("Cache-Control"); got != "no-store" {
				t.Errorf(`%s: h.Get("Cache-Control") is %q, want "no-store"`, page, got)
			}
		}
	}
	for _, page := range []string{"", "outbox", "entry?id=1", "edit?id=1", "change?do=replay&all=1"} {
		text := b.get(page).text
		if regexp.MustCompile(`<style|\sstyle=|<script>|\son[a-z]+="`).MatchString(text) {
			t.Errorf("inline code on %s: %s matches %s", page, text, `<style|\sstyle=|<script>|\son[a-z]+="`)
		}
	}
}

func TestAnotherSiteCannotChangeAnything(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard-dead&all=1"), "change")
	form.Set("why", "because")
	from := func(origin string) func(r *http.Request) { // like an old browser, which sends no Sec-Fetch-Site
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
			if a.StatusCode != http.StatusForbidden {
				t.Errorf("a.StatusCode is %d, want %d: %s: %s", a.StatusCode, http.StatusForbidden, name, page)
			}
			if want := "does not come from this page"; !strings.Contains(a.text, want) {
				t.Errorf("%s: %q is missing:\n%s", name, want, a.text)
			}
		}
	}
	b.WantNumber(2, `SELECT COUNT(*) FROM once_outbox_dead`)
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
	if got := b.do(http.MethodPost, "change", form).StatusCode; got != http.StatusSeeOther {
		t.Errorf(`b.do(http.MethodPost, "change", form).StatusCode is %d, want %d: its own page can`, got, http.StatusSeeOther)
	}
}

func TestAReadingRequestChangesNothing(t *testing.T) {
	b := newBench(t, nil)
	b.seed()
	form := b.fields(b.get("change?do=discard-dead&all=1"), "change")
	form.Set("why", "because")
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		b.answers(http.StatusOK, method, "change?"+form.Encode(), nil)
		b.answers(http.StatusMethodNotAllowed, method, "stop", nil)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodTrace} {
		a := b.do(method, "change?"+form.Encode(), nil)
		if a.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: a.StatusCode is %d, want %d", method, a.StatusCode, http.StatusMethodNotAllowed)
		}
		if got := a.Header.Get("Allow"); got != "GET, HEAD, POST" {
			t.Errorf(`a.Header.Get("Allow") is %q, want "GET, HEAD, POST"`, got)
		}
	}
	b.answers(http.StatusMethodNotAllowed, http.MethodPost, "outbox", form)
	b.answers(http.StatusMethodNotAllowed, http.MethodPost, "console.js", form)
	if got := b.Audits(); len(got) != 0 {
		t.Errorf("b.Audits are %q, want none", got)
	}
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
		if !slices.Contains(answers, a.StatusCode) {
			t.Errorf("%s: answers are %v, without %d", path, answers, a.StatusCode)
		}
		if strings.Contains(a.text, "root:") {
			t.Errorf("%s: %q is there:\n%s", path, "root:", a.text)
		}
		if a.StatusCode == http.StatusOK {
			if !strings.Contains(a.text, "Needs attention") { // the path of a folder shows the overview
				t.Errorf("%s: %q is missing:\n%s", path, "Needs attention", a.text)
			}
		}
	}
}

func TestTheFilesOfOthersAreUnchanged(t *testing.T) {
	sums := kit.ReadFile(t, "assets/SHA256SUMS")
	for line := range strings.SplitSeq(strings.TrimSpace(string(sums)), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		content := kit.ReadFile(t, "assets/"+name)
		got := sha256.Sum256(content)
		if seen := hex.EncodeToString(got[:]); seen != sum {
			t.Errorf("%s: hex.EncodeToString(got[:]) is %q, want %q", name, seen, sum)
		}
	}
	if got := strings.Split(strings.TrimSpace(string(sums)), "\n"); len(got) != 5 {
		t.Errorf("len(strings.Split) is %d, want 5: %q", len(got), got)
	}
}

func TestAFileIsCachedByItsSum(t *testing.T) {
	b := quickBench(t, nil)
	text := b.get("").text
	name := regexp.MustCompile(`console\.css\?v=[0-9a-f]+`).FindString(text)
	says(t, b.get(name).Header.Get("Cache-Control"), "immutable")
	if got := b.get("console.css?v=old").Header.Get("Cache-Control"); got != "no-cache" {
		t.Errorf(`b.get("console.css?v=old").Header.Get("Cache-Control") is %q, want "no-cache": another version is asked for again`, got)
	}
	if got := b.get(name).Header.Get("Content-Type"); got != "text/css; charset=utf-8" {
		t.Errorf(`b.get(name).Header.Get("Content-Type") is %q, want "text/css; charset=utf-8"`, got)
	}
}
