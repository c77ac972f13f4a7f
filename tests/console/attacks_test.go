package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

// hostile contains scripts that run if a page treats the text as markup, as the end of an
// attribute, or as a template.
const hostile = `"'></textarea></script><script>window.attacked=1</script><img src=x onerror="window.attacked=1">` +
	`<a href="javascript:window.attacked=1">{{.}}`

// seedHostile inserts rows into every table. Each text column contains the text
// hostile.
func (b *tab) seedHostile() {
	b.Helper()
	for _, query := range []string{
		`INSERT INTO once_outbox (slot, message_id, topic, ordering_key, payload, metadata, attempts, last_error, due_at, failing_since)
			VALUES (0, $1::text, $1::text, $1::text, convert_to($1, 'UTF8'), jsonb_build_object($1::text, $1::text), 3, $1::text,
				now() + interval '1 hour', now())`,
		`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ($1, 1, 1, 'refused')`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, tenant, payload, metadata, created_at, attempts, last_error,
			reason, unknown) VALUES (7, $1, $1, $1, $1, convert_to($1, 'UTF8'), jsonb_build_object($1::text, $1::text), now(), 20, $1,
			'exhausted', false)`,
		`INSERT INTO once_outbox_sent (position, message_id, topic, ordering_key, tenant, payload, metadata, created_at)
			VALUES (8, $1, $1, $1, $1, convert_to($1, 'UTF8'), jsonb_build_object($1::text, $1::text), now())`,
		`INSERT INTO once_replays (state, consumer, filter, plan, total, actor, why, stop_reason, until_id)
			VALUES ('stopped', $1, '{}', '{}', 1, $1, $1, $1, 0)`,
		`INSERT INTO once_forwarders (owner, destination, lease_until) VALUES ($1, $1, now() + interval '1 hour')`,
		`UPDATE once_slots SET owner = $1, lease_until = now() + interval '1 hour'`,
		`INSERT INTO once_consumers (consumer, topic, program, handler) VALUES ($1, $1, $1, $1)`,
		`INSERT INTO once_consumer_instances (consumer, topic, owner, program, handler) VALUES ($1, $1, $1, $1, $1)`,
		`INSERT INTO once_audit (actor, action, subject, consumer, message_id, why) VALUES ($1, $1, $1, $1, $1, $1)`,
	} {
		_, err := b.db.ExecContext(b.Context(), query, hostile)
		b.must(err)
	}
	m := message.NewMessage(hostile, []byte(hostile))
	m.Metadata[hostile] = hostile
	outbox.SetTenant(m, hostile)
	m.SetContext(parkedrows.WithDelivery(b.Context(), &parkedrows.Delivery{Consumer: hostile, Topic: hostile}))
	poisoned, err := poison.New(b.db.DB, poison.Config{Logger: watermill.NopLogger{}})
	b.must(err)
	_, err = poisoned.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New(hostile) })(m)
	b.must(err)
	_, err = b.db.ExecContext(b.Context(), `UPDATE once_parked SET error_type = $1, stack = $1`, hostile)
	b.must(err)
	var group string
	b.must(b.db.QueryRowContext(b.Context(), `SELECT fingerprint FROM once_parked`).Scan(&group))
	entries, err := quarantine.New(b.db.DB, operate.Config{})
	b.must(err)
	b.must(entries.Note(b.Context(), operate.Act{Actor: hostile, Why: hostile}, group))
	store, err := parkedrows.NewStore(b.db.DB, schema.Config{})
	b.must(err)
	second := message.NewMessage(hostile+"2", []byte(hostile))
	outbox.SetOrderingKey(second, hostile)
	b.must(store.DeliverTo(b.Context(), hostile, []parkedrows.Subscription{{Consumer: hostile, KeyOrder: true}}, second))
	archive, err := reconcile.NewArchive(b.db.DB, schema.Config{})
	b.must(err)
	b.must(archive.Keep(b.Context(), reconcile.Report{
		Consumer: hostile, Topics: []string{hostile}, Missing: []reconcile.Missing{{MessageID: hostile, Topic: hostile, SentLogID: 1}},
		Phantoms: []reconcile.Phantom{{MessageID: hostile, State: "quarantined"}},
	}))
}

// All tables and the addresses of the pages contain a hostile text. On no page does the browser
// treat it as markup, so its scripts do not run.
func TestHostileTextsDoNotRun(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b := open(t)
	b.seedHostile()
	q := url.QueryEscape(hostile)
	paths := []string{
		"outbox?topic=" + q + "&key=" + q + "&message=" + q, "dead?topic=" + q + "&tenant=" + q, "sent?topic=" + q,
		"quarantine?consumer=" + q + "&topic=" + q + "&tenant=" + q + "&type=" + q, "parked?consumer=" + q + "&key=" + q,
		"parked-message?id=2", "trace?causes=1&message=" + q, "trace?tenant=" + q, "audit?actor=" + q + "&action=" + q,
		"change?do=replay&consumer=" + q, "change?do=cancel&topic=" + q, "change?do=discard-dead&tenant=" + q, "entry?id=1&view=text",
	}
	for _, page := range pages {
		if page.path != "parked-message?id=17" && page.path != "change?do=run-parked&consumer=payments" {
			paths = append(paths, page.path)
		}
	}
	for _, page := range paths {
		b.visit(page)
		b.clean(page)
		if bad := eval[string](b, `"attacked" in window ? "a script of the hostile text ran" : [...document.querySelectorAll(
			"img, iframe, object, script:not([src]), style, [style*=url], [onerror], a[href^='javascript' i]")].
			map((e) => e.outerHTML).join()`); bad != "" {
			t.Errorf("%s: %s", page, bad)
		}
	}
	// The same text is used as a note, as a reason, and as the content of an edit.
	b.visit("quarantine?consumer=" + q)
	b.press("the group", `document.querySelector("a.row")`)
	b.fill("note", hostile+" saved") // not the note that the page shows already
	b.click("Save the note")
	b.until("the note is a text", `document.querySelector(".noted")?.innerText.includes("{{.}} saved")`)
	b.visit("edit?id=1")
	b.fill("payload", hostile+hostile)
	b.fill("why", hostile)
	b.click("Compare")
	b.until("the differences are texts", `document.querySelector(".diff ins")?.innerText.includes("window.attacked")`)
	b.visit("change?do=discard&consumer=" + q)
	b.confirm("Discard quarantined messages", "window.attacked")
	b.clean("forms")
	if eval[bool](b, `"attacked" in window`) {
		t.Error("a script of the hostile text ran")
	}
}

// A page of another site sends a form to the console, tries to read a page, and tries to show the
// console in a frame. Nothing is changed, and the browser shows why.
func TestAnotherSiteInTheBrowser(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	target := strings.Replace(b.url, "127.0.0.1", "localhost", 1) // for the browser, this is another site than the attacking page
	attack := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>attack</title><iframe src="%[1]s"></iframe>
			<form method="post" action="%[1]schange" enctype="application/x-www-form-urlencoded">
			<input name="do" value="discard-dead"><input name="all" value="1"><input name="limit" value="2">
			<input name="why" value="x"></form>`, target)
	}))
	defer attack.Close()
	b.do(chromedp.Navigate(attack.URL))
	b.until("the attack is loaded", `document.title === "attack"`)
	eval[any](b, fmt.Sprintf(`fetch(%[1]q + "change", { method: "POST", mode: "no-cors", credentials: "include",
		body: new URLSearchParams({ do: "discard-dead", all: "1", limit: "2", why: "x" }) }).then(() => window.sent = 1, () => window.sent = 1),
		fetch(%[1]q).then(() => window.read = true, () => window.read = false), null`, target))
	b.until("the requests have ended", `window.sent && "read" in window`)
	if eval[bool](b, `window.read`) {
		t.Error("another site read a page")
	}
	eval[any](b, `document.forms[0].submit(), null`)
	b.until("the page says why",
		`document.querySelector("h1")?.innerText === "Refused" && document.body.innerText.includes("does not come from this page")`)
	b.awaitNumber(2, `SELECT COUNT(*) FROM once_outbox_dead`)
	b.awaitNumber(2, `SELECT COUNT(*) FROM once_audit`) // from seed
	b.mu.Lock()
	defer b.mu.Unlock()
	if all := strings.Join(b.errors, "\n"); !strings.Contains(all, "frame-ancestors") && !strings.Contains(all, "X-Frame-Options") {
		t.Errorf("the frame was shown: %s", all)
	}
	b.errors = nil
}
