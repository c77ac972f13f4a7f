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

// Each page can be drawn. With SCREENSHOTS, a folder, the pictures of all pages in both
// themes and three widths are kept there: "make screenshots" does this for the docs.
func TestScreenshots(t *testing.T) {
	testkit.Long(t)
	folder, widths, shots := os.Getenv("SCREENSHOTS"), map[string]int64{"": 1280, "-tablet": 800, "-phone": 380}, pages
	if folder == "" {
		folder, widths, shots = t.TempDir(), map[string]int64{"": 1280}, pages[:1]
	}
	b := open(t)
	b.seed()
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
