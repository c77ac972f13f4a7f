package console_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/watermill-once/once/internal/testkit"
)

// Pages can be drawn. If SCREENSHOTS is the path of a folder, the test stores pictures of all pages
// there, in both themes and three widths. "make screenshots" does this for the docs. Without
// SCREENSHOTS the test draws only the first page.
func TestScreenshots(t *testing.T) {
	testkit.Long(t)
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
