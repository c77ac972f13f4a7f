package console_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/internal/test/kit"
)

// misfits is a script that returns the parts of a page that do not fit: tables and forms that are
// wider than the text, and fields that cut off a time.
const misfits = `(() => {
	const bad = [], right = document.querySelector("#live").getBoundingClientRect().right + 0.5;
	document.querySelectorAll("#live table.rows, #live form, #live dl, #live pre, #live .chart, #live .actions > *").forEach((e) => {
		if (e.checkVisibility() && e.getBoundingClientRect().right > right) bad.push("too wide: " + e.outerHTML.slice(0, 120));
	});
	document.querySelectorAll("input[type=datetime-local]").forEach((e) => {
		const whole = e.cloneNode();
		whole.style.width = "max-content", whole.style.maxWidth = "none";
		e.after(whole);
		if (whole.getBoundingClientRect().width > e.getBoundingClientRect().width) bad.push("cut off: " + e.outerHTML);
		whole.remove();
	});
	return bad;
})()`

// Each page loads without an error of the browser, and fits on a phone and on a screen.
func TestPagesLoadWithoutViolations(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := open(t)
	b.seed()
	for _, width := range []int64{380, 800, 1280}[:kit.Sized(1, 3)] {
		b.do(chromedp.EmulateViewport(width, 900))
		for _, p := range pages {
			page := p.path
			b.visit(page)
			b.clean(page)
			for _, problem := range eval[[]string](b, misfits) {
				t.Errorf("%s, %d pixels: %s", page, width, problem)
			}
			if wide := eval[int64](b, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("%s: %d pixels wide on a screen of %d", page, wide, width)
			}
		}
	}
	// The content security policy works: code that an attacker inserts into a page does not run.
	b.do(chromedp.Navigate(b.url))
	b.until("the page is loaded", `true`)
	eval[any](b, `document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.attacked = 1'>"), null`)
	kit.Eventually(t, patience, "the browser refuses inline code", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Contains(strings.Join(b.errors, " "), "Content Security Policy")
	})
	if eval[bool](b, `"attacked" in window`) {
		t.Error("inline code ran")
	}
}

// A dead letter is found, selected and discarded without a mouse.
func TestADeadLetterIsDiscardedByKeyboard(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	b.do(chromedp.Navigate(b.url))
	b.until("the overview", `document.title.startsWith("Overview")`)
	b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("d"))
	b.until("the dead letters", `document.title.startsWith("Dead letters")`)
	// j moves through the rows: the group, then the letters.
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"))
	b.until("the first letter has the focus", `document.activeElement.textContent === "dead-1"`)
	b.do(chromedp.KeyEvent("x"))
	b.until("the letter is selected", `document.querySelectorAll("input[name=id]:checked").length === 1`)
	for !eval[bool](b, `document.activeElement.value === "discard-dead"`) {
		b.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(kb.ModifierShift)))
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the form", `document.title.startsWith("Discard dead letters")`)
	for !eval[bool](b, `document.activeElement.name === "why"`) {
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	b.do(chromedp.KeyEvent("test order"), chromedp.KeyEvent(kb.Enter))
	b.until("the result", `document.body.innerText.includes("test order") && document.querySelector(".s-finished")`)
	var left string
	b.must(b.db.QueryRowContext(t.Context(), `SELECT message_id FROM once_outbox_dead`).Scan(&left))
	if left != "dead-2" {
		t.Errorf("%s is left", left)
	}
	b.clean("the whole way")
}

// The overview shows new numbers without a reload by the user. Nothing else on the page moves, and
// the focus stays.
func TestTheOverviewIsLive(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	b.do(chromedp.EmulateViewport(1280, 1600), chromedp.Navigate(b.url))
	b.until("the chart is drawn", `document.querySelector("#overview-chart canvas")`)
	eval[any](b, `window.shift = 0, new PerformanceObserver((list) => list.getEntries().forEach((e) => window.shift += e.value))
		.observe({ type: "layout-shift", buffered: false }), document.querySelector("#live a[href='quarantine']").focus(), null`)
	b.die("dead-3") // with the same cause as the other dead letters
	b.until("the new number", `document.querySelector("#live a[href='dead']").closest("div").querySelector("dd").innerText === "3"`)
	b.until("the chart is drawn again", `document.querySelector("#overview-chart canvas")`)
	if focus := eval[string](b, `document.activeElement.getAttribute("href") ?? ""`); focus != "quarantine" {
		t.Errorf("the focus is on %q", focus)
	}
	if shift := eval[float64](b, `window.shift`); shift > 0 {
		t.Errorf("the page moved by %v", shift)
	}
	b.clean("overview")
}

func TestPagesCanBeReadWithoutJavaScript(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.must(err)
	for page, text := range map[string]string{
		"": "Needs attention", "dead": "dead-2", "quarantine": "the gateway is down", "entry?id=1": `"order": 1`, "replay?id=1": "1 failed again",
		"consumers": "warehouse", "forwarders": "2 slots have no forwarder", "parked": "order-1200",
		"trace?message=order-1041&causes=1": "charge-1041", "audit": "the customer has left",
		"change?do=run-parked&consumer=payments": "Run now",
	} {
		b.do(chromedp.Navigate(b.url + page))
		seen, err := chromedp.Run(b.ctx, chromedp.Text("body"))
		b.must(err)
		if !strings.Contains(seen, text) {
			t.Errorf("%q is not on %s:\n%s", text, page, seen)
		}
	}
	b.clean("without JavaScript")
}

// An open page loads new numbers every few seconds. It does not keep the numbers that it showed
// earlier in memory.
func TestALivePageDoesNotGrow(t *testing.T) {
	kit.Long(t)
	b := open(t)
	b.seed()
	b.do(chromedp.EmulateViewport(1280, 1600), chromedp.Navigate(b.url))
	b.until("the chart is drawn", `document.querySelector("#overview-chart canvas")`)
	eval[any](b, `window.swaps = window.wanted = 0, window.load = () => {
			const live = document.getElementById("live");
			htmx.ajax("GET", live.getAttribute("hx-get"), { source: live, target: live, select: "#live", swap: "outerHTML" });
		}, document.addEventListener("htmx:afterSettle", () => { if (++window.swaps < window.wanted) setTimeout(window.load, 50); }), null`)
	measure := func(swaps int) (memory.GetDOMCountersResult, float64) {
		t.Helper()
		eval[any](b, fmt.Sprintf(`window.wanted = %d, window.load(), null`, swaps))
		b.until("the page has loaded new numbers", fmt.Sprintf(`window.swaps >= %d`, swaps))
		_, err := chromedp.Call(b.ctx, heapprofiler.CollectGarbage, cdp.Empty{})
		b.must(err)
		counters, err := chromedp.Call(b.ctx, memory.GetDOMCounters, cdp.Empty{})
		b.must(err)
		heap, err := chromedp.Call(b.ctx, runtime.GetHeapUsage, cdp.Empty{})
		b.must(err)
		used := heap.UsedSize + heap.BackingStorageSize // the second one includes long strings
		t.Logf("after %d loads: %d nodes, %d listeners, %.0f bytes of JavaScript", swaps, counters.Nodes, counters.JsEventListeners, used)
		return counters, used
	}
	// The browser may keep one chart for a while. If something were kept at each load, it would be
	// fifteen times as much.
	before, heapBefore := measure(10)
	after, heapAfter := measure(25)
	if after.Nodes > 2*before.Nodes || after.JsEventListeners > 2*before.JsEventListeners {
		t.Errorf("the page grows: %+v, then %+v", before, after)
	}
	// The browser compiles code meanwhile, which needs memory. The pages of fifteen loads would
	// need more.
	if grown := heapAfter - heapBefore; grown > heapBefore/8 {
		t.Errorf("the memory of the page's JavaScript grows by %.0f bytes, from %.0f", grown, heapBefore)
	}
	b.clean("overview")
}
