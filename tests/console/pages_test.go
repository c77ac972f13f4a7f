package console_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/internal/test/kit"
)

// pages contains the pages that a test can open at any time, and the names of their
// pictures.
var pages = []struct{ name, path string }{
	{"overview", ""},
	{"days", "days"},
	{"outbox", "outbox"},
	{"message", "message?id=1"},
	{"dead", "dead"},
	{"letter", "letter?id=1"},
	{"sent", "sent"},
	{"copy", "copy?id=1"},
	{"quarantine", "quarantine"},
	{"group", "quarantine?consumer=payments"},
	{"entry", "entry?id=1"},
	{"entry-hex", "entry?id=1&view=hex"},
	{"entry-panic", "entry?id=2"},
	{"edit", "edit?id=1"},
	{"forwarders", "forwarders"},
	{"consumers", "consumers"},
	{"parked", "parked"},
	{"parked-message", "parked-message?id=17"},
	{"find", "trace"},
	{"trace", "trace?message=order-1041&causes=1"},
	{"reconcile", "reconcile"},
	{"report", "report?id=1"},
	{"audit", "audit"},
	{"replays", "replays"},
	{"replay-stopped", "replay?id=1"},
	{"replay", "change?do=replay&consumer=payments"},
	{"cancel", "change?do=cancel&all=1"},
	{"run-parked", "change?do=run-parked&consumer=payments"},
	{"discard-dead", "change?do=discard-dead&all=1"},
	{"empty", "quarantine?topic=nothing"},
}

// otherPages are opened by other tests: the page payload only downloads a file, and the page job
// needs a running change.
var otherPages = []string{"payload", "job"}

// source returns a file of the console.
func source(t *testing.T, name string) string {
	t.Helper()
	text := kit.ReadFile(t, "../../console/"+name)
	return string(text)
}

// routes returns the names of the console's pages that accept an HTTP method.
func routes(t *testing.T, method string) (names []string) {
	t.Helper()
	for _, found := range regexp.MustCompile(`(?m)^\t\t"([a-z-]*)":\s+\{(.*)\},$`).FindAllStringSubmatch(source(t, "console.go"), -1) {
		if strings.Contains(found[2], method+": c.") {
			names = append(names, found[1])
		}
	}
	if len(names) == 0 {
		t.Fatal("console.go has no routes: are they written in another way now?")
	}
	return names
}

// changes returns the actions of the console that change something.
func changes(t *testing.T) (all []console.Action) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source(t, "config.go"), 0)
	kit.OK(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Action" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if action := console.Action(value); err == nil && action.Changes() {
				all = append(all, action)
			}
		}
		return true
	})
	if len(all) == 0 {
		t.Fatal("config.go has no actions: are they written in another way now?")
	}
	return all
}

// A new page, form or action of the console needs a test in the browser.
func TestEachPageAndActHasATest(t *testing.T) {
	for _, route := range routes(t, "get") {
		in := func(path string) bool { name, _, _ := strings.Cut(path, "?"); return name == route }
		if !slices.ContainsFunc(otherPages, in) && !slices.ContainsFunc(pages, func(p struct{ name, path string }) bool { return in(p.path) }) {
			t.Errorf("pages does not have the page %q", route)
		}
	}
	for _, action := range changes(t) {
		if acts[action] == nil {
			t.Errorf("acts does not have the action %q", action)
		}
	}
}

// The console works with 1,000,000 entries in quarantine: each page loads, the dry run of a replay
// counts all entries of a group, and the search finds an entry. A count that stops at a limit says
// that there are more rows.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b := open(t)
	b.seed()
	b.exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, error, fingerprint, first_failed_at,
			last_failed_at)
		SELECT 'failing', 'orders', 'q' || n, '', sha256(n::text::bytea), 'quarantined', now(), 'exhausted', 'the gateway is down: ' || n % 30,
			'f' || n % 30, now() - n * interval '1 second', now() - n * interval '1 second' FROM generate_series(1, 1000000) AS n`)
	b.exec(`INSERT INTO once_outbox (slot, message_id, topic, payload, metadata)
		SELECT n % 64, 'o' || n, 'bulk', '{}', '{}' FROM generate_series(1, 30000) AS n`)
	b.exec(`ANALYZE`)
	slowest := time.Duration(0)
	for _, page := range pages {
		if page.path == "entry?id=1&view=hex" {
			continue
		}
		began := time.Now()
		b.visit(page.path)
		b.clean(page.path)
		took := time.Since(began)
		t.Logf("%s: %v", page.path, took)
		slowest = max(slowest, took)
	}
	t.Logf("the slowest took %v", slowest)
	b.visit("")
	b.until("the counts say that there are more", `/^(10,000\+|~[0-9,]+)$/.test(
		document.querySelector("#live dl a[href='quarantine']").closest("div").querySelector("dd").innerText) &&
		document.querySelector("#live dl a[href='outbox']").closest("div").innerText.includes("+ due")`)
	b.visit("quarantine?consumer=failing")
	b.follow("the gateway is down: 7")
	b.click("Replay all")
	b.until("the dry run counts them", `/^33,33[34] messages$/.test(document.querySelector(".big")?.innerText)`)
	b.visit("quarantine?consumer=failing&message=q177777")
	b.follow("q177777")
	b.until("the entry", `document.body.innerText.includes("the gateway is down: 27")`)
	b.visit("quarantine?consumer=failing")
	b.click("Next page")
	b.until("the next page", `document.querySelectorAll("#entries ~ form a.row, section[aria-labelledby=entries] a.row").length === 100`)
	b.clean("many entries")
}

// An operator starts a change and closes the browser. The change runs to its end in the
// server, and another operator sees its result.
func TestAChangeOutlivesItsTab(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	b.exec(`INSERT INTO once_outbox (slot, message_id, topic, payload, metadata, attempts, last_error, due_at, failing_since)
		SELECT 0, 'slow-' || n, 'slow', '{}', '{}', 3, 'no queue is bound', now() + interval '1 hour', now() FROM generate_series(1, 900) AS n`)
	all, err := browser()
	b.must(err)
	ctx, cancel := chromedp.NewContext(all, chromedp.WithNewBrowserContext())
	defer cancel()
	first := &tab{T: t, db: b.db, url: b.url, ctx: ctx}
	first.visit("outbox?topic=slow")
	first.click("retry") // all that match
	first.until("the form", `document.querySelector(".big")?.innerText === "900 messages"`)
	first.fill("rate", "200")
	first.fill("why", "the queue is bound")
	first.do(chromedp.KeyEvent(kb.Enter))
	first.until("the change runs", `document.querySelector("h1 .s-running")`)
	first.must(chromedp.Cancel(ctx)) // closes the tab
	b.awaitNumber(0, `SELECT COUNT(*) FROM once_outbox WHERE topic = 'slow' AND due_at > now()`)
	b.visit("replays")
	b.follow("Retry messages of the outbox now")
	b.until("the result", `document.querySelector("h1 .s-finished") && document.body.innerText.match(/Changed\s+900\b/)`)
	b.clean("the result")
}

// unreadable is a script that returns the problems of a page: fields and buttons without a name,
// two elements with the same id, a page without exactly one headline, and texts that the browser
// paints with less contrast than WCAG AA requires.
const unreadable = `(() => {
	const seen = (e) => e.checkVisibility() && !e.closest(".unseen, .skip"), bad = [];
	const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
	all("input:not([type=hidden]), select, textarea").filter((e) => !e.labels.length && !e.ariaLabel)
		.forEach((e) => bad.push("no label: " + e.outerHTML));
	all("a, button").filter((e) => !e.innerText.trim() && !e.ariaLabel).forEach((e) => bad.push("no name: " + e.outerHTML));
	all("time").filter((e) => !/ UTC$/.test(e.title) || !/^in .| ago$|^now$/.test(e.innerText))
		.forEach((e) => bad.push("time: " + e.outerHTML));
	const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
	ids.filter((id, n) => ids.indexOf(id) !== n).forEach((id) => bad.push("twice: " + id));
	if (document.querySelectorAll("h1").length !== 1) bad.push("not one headline");
	const rgb = (text) => text.match(/[\d.]+/g).map(Number);
	const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
	const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
	const behind = (e) => {
		for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c; }
		return [255, 255, 255];
	};
	all("body *").filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).forEach((e) => {
		const [x, y] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
		const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
		if (ratio < 4.5) bad.push(ratio.toFixed(2) + ": " + e.outerHTML.slice(0, 120));
	});
	return bad;
})()`

// In both themes, each page can be read and used by people who see badly or do not use a mouse.
func TestPagesAreAccessible(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b := open(t)
	b.seed()
	for _, theme := range []string{"light", "dark"} {
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
		})
		b.must(err)
		for _, page := range pages {
			b.visit(page.path)
			for _, problem := range eval[[]string](b, unreadable) {
				t.Errorf("%s, %s: %s", theme, page.path, problem)
			}
		}
		// Each element that the tab key reaches must show that it has the focus.
		b.visit("quarantine")
		for range 40 {
			b.do(chromedp.KeyEvent(kb.Tab))
			if hidden := eval[string](b, `((e, s) =>
				e === document.body || s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1 ? "" : e.outerHTML)(
				document.activeElement, getComputedStyle(document.activeElement))`); hidden != "" {
				t.Errorf("%s: the focus does not show on %s", theme, hidden)
			}
		}
	}
}
