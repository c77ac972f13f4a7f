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

// shots are the pages that the docs show, by the names of their files.
var shots = map[string]string{
	"overview":   "",
	"quarantine": "quarantine",
	"replay":     "change?do=replay&consumer=payments",
	"edit":       "edit?id=1",
	"life":       "life?message=order-1041&causes=1",
	"consumers":  "consumers",
	"forwarders": "forwarders",
	"parked":     "parked",
	"audit":      "audit",
}

// Each page is drawn in both themes and three widths. With SCREENSHOTS, a folder, the
// pictures are kept there: "make screenshots" does this for the docs.
func TestScreenshots(t *testing.T) {
	testkit.Long(t)
	folder := os.Getenv("SCREENSHOTS")
	if folder == "" {
		folder = t.TempDir()
	}
	b := open(t)
	b.seed()
	for name, page := range shots {
		for _, theme := range []string{"light", "dark"} {
			for size, width := range map[string]int64{"": 1280, "-tablet": 800, "-phone": 380} {
				_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
				})
				b.must(err)
				b.do(chromedp.EmulateViewport(width, 800), chromedp.Navigate(b.url+page))
				b.until(page+" is loaded", `document.documentElement.classList.contains("js")`)
				picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
				b.must(err)
				file := filepath.Join(folder, name+size+"-"+theme+".png")
				b.must(os.WriteFile(file, picture, 0o600))
				if !strings.HasPrefix(string(picture), "\x89PNG") {
					t.Errorf("%s is no picture", file)
				}
			}
		}
	}
}
