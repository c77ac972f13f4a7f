package console_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/internal/test/kit"
)

// startDemo runs "make demo" and returns the address of its console.
func startDemo(t *testing.T) (url string, stop func() error) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "orders")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "../../examples/orders")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	demo := exec.Command(program, "-outage", "-addr", "127.0.0.1:0") // stop ends it, after the browser
	out, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	kit.OK(t, err)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, address, found := strings.Cut(lines.Text(), "console at "); found {
			url = address
			break
		}
	}
	if url == "" {
		t.Fatalf("the demo printed no address: %v", lines.Err())
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		for lines.Scan() {
			t.Log(lines.Text())
		}
	}()
	return url, func() error {
		err := demo.Process.Signal(syscall.SIGTERM)
		<-rest
		if err != nil {
			return err
		}
		return demo.Wait()
	}
}

// click clicks the first link or button with the given text, or else the first one whose text
// begins with it.
func (b *tab) click(text string) {
	b.Helper()
	b.press(text, fmt.Sprintf(`((all) => all.find((e) => e.innerText.trim() === %[1]q) ??
		all.find((e) => e.innerText.trim().startsWith(%[1]q)))([...document.querySelectorAll("main a, main button")])`, text))
}

// press clicks in the middle of an element with the mouse. find is the JavaScript expression of the
// element. Nothing may cover the element.
func (b *tab) press(what, find string) {
	b.Helper()
	b.until("there is "+what, find)
	at := eval[[]float64](b, `((e) => {
		e.scrollIntoView({ block: "center" });
		const box = e.getClientRects()[0], x = box.x + box.width / 2, y = box.y + box.height / 2;
		return e.contains(document.elementFromPoint(x, y)) ? [x, y] : [];
	})(`+find+`)`)
	if len(at) != 2 {
		b.Fatalf("something covers %s", what)
	}
	b.do(chromedp.MouseClickXY(at[0], at[1]))
}

// A person who has not read the docs starts the demo, sees that payments have failed, finds their
// cause, replays them, and watches the replay end.
func TestANewcomerReplaysFailedPayments(t *testing.T) {
	t.Parallel()
	kit.Long(t)
	chromium(t)
	url, stop := startDemo(t)
	b := &tab{T: t}
	b.browse(url, stop)
	began := time.Now()
	b.do(chromedp.Navigate(url))
	b.until("all payments have failed", `document.body.innerText.includes("payments gave up on 20 messages")`)
	b.until("the cause is named", `document.body.innerText.includes("payment gateway: 503 Service Unavailable")`)
	b.click("See the failure")
	b.until("the failure group", `document.title.startsWith("Quarantine")`)
	b.click("Replay all")
	b.until("the dry run", `document.body.innerText.includes("20 messages")`)
	b.do(chromedp.Focus(`input[name=why]`), chromedp.KeyEvent("the gateway is back"), chromedp.KeyEvent(kb.Enter))
	b.until("the replay has finished", `document.title.startsWith("Replay ") && document.querySelector("h1 .s-finished")`)
	b.until("all messages are handled", `document.body.innerText.match(/Handled\s+20/)`)
	t.Logf("it took %v", time.Since(began)) // less than a minute on an idle machine
	b.click("Replays")
	b.until("the list of replays", `document.title.startsWith("Replays")`) // otherwise the next navigation would interrupt the loading
	b.do(chromedp.Navigate(url))
	b.until("nothing is left to do", `document.body.innerText.includes("Nothing.")`)
	b.clean("the whole way")
}

// Pages can be drawn. If SCREENSHOTS is the path of a folder, the test stores pictures of all pages
// there, in both themes and three widths. "make screenshots" does this for the docs. Without
// SCREENSHOTS the test draws only the first page.
func TestScreenshots(t *testing.T) {
	kit.Long(t)
	folder, widths, shots := os.Getenv("SCREENSHOTS"), map[string]int64{"": 1280, "-tablet": 800, "-phone": 380}, pages
	if folder == "" {
		folder, widths, shots = t.TempDir(), map[string]int64{"": 1280}, pages[:1]
	}
	b := open(t)
	b.seed()
	b.drawCharts()
	for _, shot := range shots {
		for _, theme := range []string{"light", "dark"} {
			for size, width := range widths {
				_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
				})
				b.must(err)
				b.do(chromedp.EmulateViewport(width, 800))
				b.visit(shot.path)
				picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
				b.must(err)
				file := filepath.Join(folder, shot.name+size+"-"+theme+".png")
				b.must(os.WriteFile(file, picture, 0o600))
				if !strings.HasPrefix(string(picture), "\x89PNG") {
					t.Errorf("%s is no picture", file)
				}
			}
		}
	}
}

// drawCharts waits until the overview has its charts. Until then the tables contain messages of the
// last 30 days, so that the charts are not empty.
func (b *tab) drawCharts() {
	b.Helper()
	const many = `generate_series(1, 30) AS day, generate_series(1, 90 + day % 7 * 20 + day * 3) AS n`
	b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		SELECT n, 'past-' || day || '-' || n, 'orders.placed', '{}', '{}', at, at
		FROM (SELECT day, n, now() - (30 - day) * interval '1 day' AS at FROM ` + many + `) AS past ORDER BY at`)
	b.exec(`INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT 'past-' || day || '-' || n, 'mail', '', now() - (30 - day) * interval '1 day' FROM ` + many + ` WHERE n % 9 > 0`)
	b.visit("")
	b.until("the charts are drawn", `["overview", "rates", "days"].every((name) => document.querySelector("#" + name + "-chart canvas"))`)
	b.exec(`DELETE FROM once_outbox_sent WHERE message_id LIKE 'past-%'`)
	b.exec(`DELETE FROM once_inbox WHERE message_id LIKE 'past-%'`)
}
