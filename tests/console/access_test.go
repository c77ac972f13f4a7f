package console_test

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/internal/testkit"
)

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
	testkit.Long(t)
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
