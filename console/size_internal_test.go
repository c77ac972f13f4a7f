package console

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/quarantine"
)

// zipped returns the size of content after compression with gzip.
func zipped(t *testing.T, content []byte) int {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	kit.OK(t, err)
	kit.OK(t, kit.Err(w.Write(content)))
	kit.OK(t, w.Close())
	return out.Len()
}

// A first visit of the overview loads less than 60 kB, even if it lists many problems.
func TestTheOverviewIsSmall(t *testing.T) {
	o := overview{At: time.Now(), FreeSlots: 3, Forwarders: 2}
	for n := range 50 {
		name := fmt.Sprintf("orders.topic-%d", n)
		o.Topics = append(o.Topics, outbox.Topic{Name: name, Pending: n * 1000, Due: n, BackingOff: n})
		consumer := parked.Consumer{Name: fmt.Sprintf("consumer-%d", n), Topic: name, Waiting: n + 1}
		o.Consumers = append(o.Consumers, consumerRow{Consumer: consumer, Handled: "1.5"})
		group := operate.Group{Count: n, Error: "the gateway answered 502 for " + name, Reason: "failed", Fingerprint: strconv.Itoa(n)}
		o.Groups, o.DeadGroups = append(o.Groups, group), append(o.DeadGroups, group)
		o.Replays = append(o.Replays, operate.Replay{Consumer: name})
	}
	o.judge()
	var html bytes.Buffer
	kit.OK(t, templates["overview"].ExecuteTemplate(&html, "layout.html", page{
		Title: "Overview", Template: "overview", Live: liveSeconds, Charts: true, Body: o,
	}))
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

// hostile are payloads that become much larger in one of the views.
var hostile = map[string]string{
	"brackets":      strings.Repeat("[", 9999) + strings.Repeat("]", 9999),
	"many brackets": "[" + strings.Repeat(strings.Repeat("[", 9998)+strings.Repeat("]", 9998)+",", 50) + "1]",
	"objects":       strings.Repeat(`{"a":`, 9999) + "1" + strings.Repeat("}", 9999),
	"numbers":       "[" + strings.Repeat("1,", 100_000) + "1]",
	"empty arrays":  "[" + strings.Repeat("[],{},", 50_000) + "1]",
	"quotes":        strings.Repeat(`"`, 300_000),
	"escapes":       `"` + strings.Repeat(`\"\\`, 50_000) + `"`,
	"markup":        strings.Repeat("<&'>", 100_000),
	"zeros":         strings.Repeat("\x00", 300_000),
	"invalid":       strings.Repeat("\xff", 300_000),
	"hidden":        strings.Repeat("\u202e", 100_000),
	"lines":         strings.Repeat("\n", 300_000),
	"half a rune":   strings.Repeat("\U0001f600", 20_000)[1:],
}

// A text is cut between two characters, wherever the limit is, and even if it is only one
// byte too long.
func TestTextsAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for _, character := range []string{"a", "ä", "€", "😀"} {
		all := strings.Repeat(character, 20)
		for limit := range len(all) {
			for long := limit + 1; long <= len(all); long++ {
				if long%len(character) != 0 {
					continue
				}
				want := strings.Repeat(character, limit/len(character)) + "… (cut)"
				if got := shortened(all[:long], limit); got != want {
					t.Errorf("%q, cut to %d bytes, is %q, want %q", all[:long], limit, got, want)
				}
			}
		}
		if got := shortened(all, len(all)); got != all {
			t.Errorf("%q is %q", all, got)
		}
	}
	if got := beginning([]byte("\x80\x80\x80\x80\x80\x80"), 5); len(got) != 5 {
		t.Errorf("%q has %d bytes, want 5", got, len(got))
	}
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzRenderIsBounded renders messages in all views. However a message is made, a view
// needs a few times its size, or less.
func FuzzRenderIsBounded(f *testing.F) {
	for _, payload := range hostile {
		f.Add([]byte(payload))
	}
	f.Add([]byte(`{"a": [1, {"b": "c\"]"}, [], {}], "d": null}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		limit := uint64(4<<20 + 8*len(payload))
		for _, view := range []string{viewJSON, viewText, viewHex} {
			var text string
			if got := allocated(func() { text, _ = render(payload, view) }); got > limit {
				t.Errorf("%s of %d bytes: %d bytes are allocated, want at most %d", view, len(payload), got, limit)
			}
			if len(text) > 8*shownBytes {
				t.Errorf("%s of %d bytes: the text has %d bytes", view, len(payload), len(text))
			}
		}
		if isJSON(payload) && len(payload) < 1000 {
			var want bytes.Buffer
			kit.OK(t, json.Indent(&want, payload, "", "  "))
			if got := string(indented(payload)); want.Len() < shownBytes && got != strings.TrimRight(want.String(), " \t\r\n") {
				t.Errorf("%q is indented as\n%s\nwant\n%s", payload, got, want.String())
			}
		}
		if got := allocated(func() { expectSmallPages(t, payload) }); got > 8*limit {
			t.Errorf("pages of %d bytes: %d bytes are allocated, want at most %d", len(payload), got, 8*limit)
		}
	})
}

// expectSmallPages renders pages on which text is an error, a name and metadata, and on
// which it is edited.
func expectSmallPages(t *testing.T, payload []byte) {
	t.Helper()
	text := string(payload)
	pairs, _ := shownMetadata(map[string]string{text: text, "b": text, "c": text})
	entry := quarantine.Entry{ID: 1, Error: text, Stack: text, MessageID: text, Consumer: text, Topic: text, ErrorType: text}
	pages := map[string]any{
		"entry":      entryPage{Entry: entry, Content: content{Metadata: pairs, Size: 1, Text: "x"}},
		"quarantine": quarantinePage{Entries: []quarantine.Entry{entry, entry}},
		"edit": editPage{
			Review: true, PayloadDiff: diff(text, strings.ReplaceAll(text, "1", "2")),
			MetadataDiff: diff(text, strings.ReplaceAll(text, "\n", "\n\n")),
		},
	}
	for name, body := range pages {
		var html bytes.Buffer
		kit.OK(t, templates[name].ExecuteTemplate(&html, "layout.html", page{Template: name, Body: body}))
		if limit := 4<<20 + 32*len(payload); html.Len() > limit {
			t.Errorf("page %s has %d bytes, want at most %d, for a message of %d bytes", name, html.Len(), limit, len(payload))
		}
	}
}
