package console

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/pending"
	"github.com/watermill-once/once/poison"
)

// zipped returns the size of content after compression with gzip.
func zipped(t *testing.T, content []byte) int {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}

// A first visit of the overview loads less than 60 kB, even if it lists many problems.
func TestTheOverviewIsSmall(t *testing.T) {
	o := overview{At: time.Now(), FreeSlots: 3, Forwarders: 2}
	for n := range 50 {
		name := fmt.Sprintf("orders.topic-%d", n)
		o.Topics = append(o.Topics, pending.Topic{Name: name, Pending: n * 1000, Due: n, BackingOff: n})
		consumer := parked.Consumer{Name: fmt.Sprintf("consumer-%d", n), Topic: name, Waiting: n + 1}
		o.Consumers = append(o.Consumers, consumerRow{Consumer: consumer, Handled: "1.5"})
		group := operate.Group{Count: n, Error: "the gateway answered 502 for " + name, Reason: "failed", Fingerprint: strconv.Itoa(n)}
		o.Groups, o.DeadGroups = append(o.Groups, group), append(o.DeadGroups, group)
		o.Replays = append(o.Replays, poison.Replay{Consumer: name})
	}
	o.judge()
	var html bytes.Buffer
	err := templates["overview"].ExecuteTemplate(&html, "layout.html", page{
		Title: "Overview", Template: "overview", Live: liveSeconds, Charts: true, Body: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	sum := zipped(t, html.Bytes())
	t.Logf("page: %d bytes, %d zipped", html.Len(), sum)
	for name, file := range assets {
		size := zipped(t, file.content)
		t.Logf("%s: %d zipped", name, size)
		sum += size
	}
	if sum >= 60_000 {
		t.Errorf("sum is %d, want less than 60_000", sum)
	}
}

// luminance returns the relative luminance, as WCAG 2.2 defines it, of a color such as
// "#1b2127".
func luminance(t *testing.T, color string) float64 {
	t.Helper()
	number, err := strconv.ParseUint(color[1:], 16, 32)
	if err != nil {
		t.Fatalf("%s: %v", color, err)
	}
	if len(color) != 7 {
		t.Fatalf("len(color) is %d, want 7", len(color))
	}
	channel := func(shift uint) float64 {
		c := float64(number>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*channel(16) + 0.7152*channel(8) + 0.0722*channel(0)
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

// Each text color has the contrast of WCAG AA on each background that it is used on, in
// both themes.
func TestColorsHaveContrast(t *testing.T) {
	css := string(assets["console.css"].content)
	themes := regexp.MustCompile(`(?s):root \{(.*?)\n *\}`).FindAllStringSubmatch(css, -1)
	if len(themes) != 2 {
		t.Fatalf("%d themes, want 2: %q", len(themes), themes)
	}
	for i, theme := range themes {
		colors := map[string]string{}
		for _, found := range regexp.MustCompile(`--([a-z0-9-]+): (#[0-9a-f]{6});`).FindAllStringSubmatch(theme[1], -1) {
			colors[found[1]] = found[2]
		}
		pairs := [][2]string{
			{"accent-text", "accent"},
			{"bad", "bad-surface"},
			{"warn", "warn-surface"},
			{"good", "good-surface"},
			{"text", "bad-surface"},
			{"muted", "bad-surface"},
			{"text", "added"},
			{"text", "removed"},
		}
		for _, text := range []string{"text", "muted", "accent", "bad", "warn", "good"} {
			for _, background := range []string{"page", "surface", "raised"} {
				pairs = append(pairs, [2]string{text, background})
			}
		}
		for _, pair := range pairs {
			if colors[pair[0]] == "" {
				t.Fatalf("%v: colors[pair[0]] is empty", pair)
			}
			if colors[pair[1]] == "" {
				t.Fatalf("%v: colors[pair[1]] is empty", pair)
			}
			if got := contrast(t, colors[pair[0]], colors[pair[1]]); got < 4.5 {
				t.Errorf("theme %d: %s on %s: contrast is %v, want at least 4.5", i, pair[0], pair[1], got)
			}
		}
		// The borders of fields and of states are graphics.
		if got := contrast(t, colors["strong-line"], colors["surface"]); got < 3.0 {
			t.Errorf("theme %d: contrast is %v, want at least 3.0", i, got)
		}
	}
	banners := regexp.MustCompile(`\.environment(?:\.[a-z]+)? \{[^}]*background: (#[0-9a-f]{6});`).FindAllStringSubmatch(css, -1)
	if len(banners) != 6 {
		t.Fatalf("%d banners, want 6: %q", len(banners), banners)
	}
	for _, found := range banners {
		if got := contrast(t, "#ffffff", found[1]); got < 4.5 {
			t.Errorf(`%s: contrast("#ffffff", found[1]) is %v, want at least 4.5`, found[1], got)
		}
	}
}
