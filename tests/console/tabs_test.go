package console_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/internal/testkit"
)

// An operator starts a change and closes the browser. The change runs to its end in the
// server, and another operator sees its result.
func TestAChangeOutlivesItsTab(t *testing.T) {
	testkit.Long(t)
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
