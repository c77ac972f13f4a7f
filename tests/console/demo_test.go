package console_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/watermill-once/once/internal/testkit"
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
	if err != nil {
		t.Fatal(err)
	}
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
	testkit.Long(t)
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
