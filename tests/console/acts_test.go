package console_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

// acts contains a function for each action of the console. The function performs the action like a
// person, from a page with the messages to the result.
var acts = map[console.Action]func(b *tab){
	console.RetryPending: func(b *tab) {
		b.visit("outbox")
		b.choose("refused-1")
		b.click("Retry selected now")
		b.confirm("Retry messages of the outbox now", "the queue is bound")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'refused-1' AND due_at > now()`)
	},
	console.CancelPending: func(b *tab) {
		b.visit("message?id=1")
		b.click("Cancel")
		b.click("With force") // a forwarder has the message
		b.confirm("Cancel messages of the outbox", "the order is void")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_outbox_dead WHERE message_id = 'refused-1' AND reason = 'cancelled'`)
	},
	console.PausePending: func(b *tab) {
		b.visit("outbox")
		b.fill("tenant", "globex")
		b.click("Pause")
		b.confirmOne("Pause a topic or a tenant", "1 topic or tenant", "their endpoint is down")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_pauses WHERE kind = 'tenant' AND name = 'globex' AND why = 'their endpoint is down'`)
	},
	console.ResumePending: func(b *tab) {
		b.exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'mails', 'ann', 'the relay is down') ON CONFLICT DO NOTHING`)
		b.exec(`DELETE FROM once_pauses WHERE name <> 'mails'`)
		b.visit("outbox")
		b.click("Resume")
		b.confirmOne("Resume a topic or a tenant", "1 topic or tenant", "the relay is back")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_pauses WHERE name = 'mails'`)
	},
	console.PauseConsumer: func(b *tab) {
		b.exec(`INSERT INTO once_consumers (consumer, topic) VALUES ('payments', 'orders.placed') ON CONFLICT DO NOTHING`)
		b.exec(`DELETE FROM once_consumer_pauses`)
		b.visit("consumers")
		b.click("Pause")
		b.confirmOne("Pause a consumer", "1 topic of the consumer", "the provider is down")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_consumer_pauses WHERE why = 'the provider is down'`)
	},
	console.ResumeConsumer: func(b *tab) {
		b.exec(`DELETE FROM once_consumer_pauses`)
		b.exec(`INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ('orders.placed', 'payments', 'ann', 'no provider')`)
		b.visit("consumers")
		b.click("Resume")
		b.confirmOne("Resume a consumer", "1 topic of the consumer", "the provider is back")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_consumer_pauses`)
	},
	console.ReplayDead: func(b *tab) {
		b.visit("dead")
		b.choose("dead-1")
		b.click("Replay selected")
		b.confirm("Replay dead letters", "the queue is bound")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'dead-1'`)
	},
	console.DiscardDead: func(b *tab) {
		b.visit("dead")
		b.follow("dead-2")
		b.click("Discard")
		b.confirm("Discard dead letters", "a test order")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_outbox_dead WHERE message_id = 'dead-2'`)
	},
	console.ReleaseKey: func(b *tab) {
		b.die("blocking")
		b.exec(`UPDATE once_outbox_dead SET ordering_key = 'customer-9', position = 900 WHERE message_id = 'blocking'`)
		b.exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('customer-9', 900, 900, 'dead')`)
		b.visit("dead?key=customer-9")
		b.follow("blocking")
		b.click("Release the key")
		b.confirm("Release an ordering key", "the order does not matter")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_blocked_keys WHERE ordering_key = 'customer-9'`)
	},
	console.ReplaySent: func(b *tab) {
		b.visit("sent")
		b.follow("sent-1")
		b.click("Send again")
		b.confirm("Send messages again", "the consumer has lost it")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_outbox WHERE message_id = 'sent-1'`)
	},
	console.RunParked: func(b *tab) {
		b.visit("parked?consumer=payments")
		b.follow("order-1200")
		b.click("Run now")
		b.confirm("Run parked messages now", "the gateway is back")
		b.awaitNumber(0, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'order-1200' AND consumer = 'payments' AND due_at > now()`)
	},
	console.CancelParked: func(b *tab) {
		b.visit("parked?consumer=warehouse")
		b.choose("order-1201")
		b.click("Cancel selected")
		b.confirm("Cancel parked messages", "out of stock")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'order-1201' AND consumer = 'warehouse' AND state = 'quarantined'`)
	},
	console.DiscardParked: func(b *tab) {
		b.visit("parked?consumer=warehouse&message=order-1202")
		b.click("discard") // the link for all matching messages
		b.confirm("Discard parked messages", "a test order")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'order-1202' AND consumer = 'warehouse' AND state = 'discarded'`)
	},
	console.DiscardQuarantined: func(b *tab) {
		b.visit("quarantine?consumer=mail")
		b.choose("order-1077")
		b.click("Discard selected")
		b.confirm("Discard quarantined messages", "the customer has left")
		b.awaitNumber(1, `SELECT COUNT(*) FROM once_parked WHERE message_id = 'order-1077' AND state = 'discarded'`)
	},
	console.NoteGroup: func(b *tab) {
		b.visit("quarantine")
		b.follow("the gateway is down")
		b.fill("note", "ask the bank")
		b.click("Save the note")
		b.until("the note is shown", `document.querySelector(".noted")?.innerText.includes("ask the bank")`)
		b.visit("entry?id=1")
		b.until("the entry has the note", `document.querySelector(".note")?.innerText.includes("ask the bank")`)
	},
	console.EditQuarantined:   (*tab).edit,
	console.ReplayQuarantined: (*tab).replay,
	console.Stop:              (*tab).stop,
}

// edit changes an amount, looks at the differences, and stores the message.
func (b *tab) edit() {
	b.visit("entry?id=1")
	b.click("Edit")
	b.until("the payload", `document.querySelector("textarea[name=payload]").value.includes('"order":1')`)
	b.fill("payload", `{"order":2}`)
	b.do(chromedp.Click(`input[name=keep]`))
	b.fill("why", "a wrong number")
	b.click("Compare")
	b.until("both sides", `document.querySelector(".diff del") && document.querySelector(".diff ins").innerText.includes("2")`)
	b.clean("the differences")
	b.awaitNumber(0, `SELECT COUNT(*) FROM once_audit WHERE why = 'a wrong number'`)
	b.click("Keep editing")
	b.until("the form again", `document.querySelector("textarea[name=payload]").value === '{"order":2}'`)
	b.click("Compare")
	b.until("both sides again", `document.querySelector(".diff ins")`)
	b.click("Store the edited message")
	b.until("the edited entry", `document.body.innerText.includes("Edited from")`)
	b.awaitNumber(1, `SELECT COUNT(*) FROM once_audit WHERE action = 'edit' AND why = 'a wrong number'`)
}

// replay performs a whole replay: it chooses a failure group, makes a dry run, starts with a
// canary, watches a failure stop the replay, resumes it, stops it, resumes it again, and looks at
// the result.
func (b *tab) replay() {
	gate, bad := b.consume()
	b.visit("quarantine")
	b.follow("card was declined")
	b.click("Replay all 12")
	b.until("the dry run", `document.querySelector(".big")?.innerText === "12 messages"`)
	b.until("careful defaults", `document.querySelector("[name=canary]").value === "1" && document.querySelector("[name=stop]").checked`)
	b.fill("why", "the bank knows XTS now")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the canary runs", `document.querySelector("h1 .s-running") && document.querySelector("#live[hx-get]")`)
	gate <- struct{}{} // the canary fails again
	b.until("the replay has stopped", `document.querySelector("h1 .s-stopped")`)
	b.until("the page says why", `document.body.innerText.includes("1 failed again of the canary")`)
	b.clean("the stopped replay")

	bad.Store(false)
	b.fill("why", "they do now")
	b.click("Resume")
	b.until("the replay runs again", `document.querySelector("h1 .s-running")`)
	gate <- struct{}{}
	b.until("one message is handled", `document.body.innerText.match(/Handled\s+1\b/)`)
	b.until("the chart is drawn", `document.querySelector("#replay-chart canvas")`)
	b.click("Stop")
	b.until("the replay is paused", `document.querySelector("h1 .s-paused")`)
	b.fill("why", "go on")
	b.click("Resume")
	close(gate)
	b.until("the replay has finished", `document.querySelector("h1 .s-finished")`)
	b.until("the result", `document.body.innerText.match(/Handled\s+11\b/) && document.body.innerText.match(/Failed again\s+1\b/)`)
	b.until("the page does not load itself any more", `!document.querySelector("#live[hx-get]")`)
	b.awaitNumber(11, `SELECT COUNT(*) FROM once_inbox WHERE consumer = 'payments' AND message_id LIKE 'order-11%'`)
	b.visit("replays")
	b.until("the result is kept", `[...document.querySelectorAll("tbody tr")].some((row) => row.innerText.includes("finished"))`)
}

// stop presses the stop button of a change of many messages, and then the one of a
// replay that another process runs.
func (b *tab) stop() {
	b.exec(`INSERT INTO once_outbox (slot, message_id, topic, payload, metadata, attempts, last_error, due_at, failing_since)
		SELECT 0, 'slow-' || n, 'slow', '{}', '{}', 3, 'no queue is bound', now() + interval '1 hour', now() FROM generate_series(1, 900) AS n`)
	b.visit("outbox?topic=slow")
	b.click("retry") // the link for all matching messages
	b.until("the form", `document.querySelector(".big")?.innerText === "900 messages"`)
	b.fill("rate", "1")
	b.fill("why", "the queue is bound")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the change runs", `document.querySelector("h1 .s-running") && document.querySelector("#stop")`)
	b.click("Stop")
	b.until("the change has stopped", `document.querySelector("h1 .s-stopped")`)
	b.awaitNumber(1, `SELECT LEAST(COUNT(*), 1) FROM once_outbox WHERE topic = 'slow' AND due_at > now()`)

	b.exec(`INSERT INTO once_replays (id, state, consumer, filter, plan, total, actor, why, until_id, lease_until)
		OVERRIDING SYSTEM VALUE VALUES (77, 'running', 'elsewhere', '{}', '{}', 9, 'bob', 'try', 0, now() + interval '1 hour')`)
	b.visit("replay?id=77")
	b.fill("why", "the wrong consumer")
	// The page loads itself again and again. This must not empty the field.
	eval[any](b, `window.loads = 0, document.addEventListener("htmx:beforeRequest", () => window.loads++), null`)
	b.until("the page would have been loaded twice", `window.loads >= 2`)
	b.until("the page says that it waits", `document.querySelector("#live-state").innerText === "Paused while you type"`)
	b.click("Stop")
	b.until("the replay is stopped", `document.querySelector("h1 .s-stopped")`)
	b.awaitNumber(1, `SELECT COUNT(*) FROM once_audit WHERE action = 'stop' AND why = 'the wrong consumer'`)
}

// Each action can be performed in the browser. Its form asks for permission to do this action, and
// the browser reports no error on any page that the test opens.
func TestEachActInTheBrowser(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	b := open(t)
	b.seed()
	b.do(chromedp.EmulateViewport(1280, 900))
	for _, action := range changes(t) {
		t.Log(action)
		acts[action](b)
		b.clean(string(action))
		if !b.posted(string(action)) {
			t.Errorf("no form was sent that needs %q", action)
		}
	}
	for _, page := range routes(t, "post") {
		if !b.posted(page) {
			t.Errorf("no form was sent to %q", page)
		}
	}
	b.visit("audit")
	for _, act := range []string{"retry", "cancel", "replay", "discard", "release", "run", "note", "edit", "stop", "resume", "pause"} {
		b.until("the audit has "+act, fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].some((row) => row.innerText.includes(%q))`, act))
	}
}

// visit opens a page.
func (b *tab) visit(page string) {
	b.Helper()
	b.do(chromedp.Navigate(b.url + page))
	b.until(page+" is loaded", `document.documentElement.classList.contains("js")`)
}

// follow clicks the link of the list row that contains text, and waits until the browser has left the
// list, which also has buttons such as "Discard selected".
func (b *tab) follow(text string) {
	b.Helper()
	eval[bool](b, `window.list = true`)
	b.press("the row "+text, fmt.Sprintf(`[...document.querySelectorAll("a.row")].find((e) => e.innerText.includes(%q))`, text))
	b.until("the page of "+text, `!window.list`)
}

// choose selects the row of a message.
func (b *tab) choose(id string) {
	b.Helper()
	b.press("the row "+id, fmt.Sprintf(`[...document.querySelectorAll("tr")].find((e) => e.querySelector("a.row")?.innerText === %q)?.
		querySelector("input[name=id]")`, id))
	b.until("one row is selected", `document.querySelectorAll("input[name=id]:checked").length === 1`)
}

// fill writes into a field.
func (b *tab) fill(name, text string) {
	b.Helper()
	field := "[name=" + name + "]:not([type=hidden])"
	b.do(chromedp.Focus(field), chromedp.SetValue(field, text))
}

// confirm enters a reason into the form of a change, sends the form, and waits until the change has
// finished.
func (b *tab) confirm(title, why string) {
	b.Helper()
	b.confirmOne(title, "1 message", why)
}

// confirmOne is like confirm, for a change of one thing that is not a message. The form
// must show the given count, such as "1 topic or tenant".
func (b *tab) confirmOne(title, count, why string) {
	b.Helper()
	b.until("the form", fmt.Sprintf(`document.querySelector("h1").innerText === %q`, title))
	b.until(count, fmt.Sprintf(`document.querySelector(".big")?.innerText === %q`, count))
	b.fill("why", why)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the change has finished", fmt.Sprintf(`document.querySelector("h1 .s-finished") && document.body.innerText.includes(%q)`, why))
	b.until("one thing is changed", `document.body.innerText.match(/Changed\s+1\b/)`)
}

func (b *tab) exec(query string) {
	b.Helper()
	_, err := b.db.ExecContext(b.Context(), query)
	b.must(err)
}

// awaitNumber waits until a query returns the number want.
func (b *tab) awaitNumber(want int, query string) {
	b.Helper()
	kit.Eventually(b, patience, query, func() bool {
		var n int
		b.must(b.db.QueryRowContext(b.Context(), query).Scan(&n))
		return n == want
	})
}

// consume runs the consumer payments until the test ends. For each order whose number begins with
// 11, its handler waits for a value from gate, and fails while bad is true.
func (b *tab) consume() (gate chan struct{}, bad *atomic.Bool) {
	b.Helper()
	gate, bad = make(chan struct{}, 1), new(atomic.Bool)
	bad.Store(true)
	transport, err := embedded.New(b.db.DB, embedded.Config{Logger: watermill.NopLogger{}})
	b.must(err)
	consumer, err := once.NewConsumer(b.db.DB, once.ConsumerConfig{Logger: watermill.NopLogger{}})
	b.must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	b.must(err)
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if !strings.HasPrefix(msg.UUID, "order-11") {
				return nil, nil
			}
			select {
			case <-gate:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if bad.Load() {
				return nil, retry.Permanent(errors.New("card was declined: currency XTS is unknown"))
			}
			return nil, nil
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := kit.Go(func() error { return router.Run(ctx) })
	<-router.Running()
	b.Cleanup(func() {
		cancel()
		b.must(errors.Join(router.Close(), <-ended))
	})
	return gate, bad
}
