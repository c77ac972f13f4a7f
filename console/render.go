package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/watermill-once/once/internal/meta"
)

//go:embed templates/*.html
var templateFiles embed.FS

// Each template consists of layout.html and the content of the page.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	shared := template.Must(template.New("layout.html").Funcs(functions).
		ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	entries, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // cannot fail: the files are embedded in the program
	}
	all := map[string]*template.Template{}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, "templates/"+entry.Name()))
	}
	return all
}

var functions = template.FuncMap{
	"ago":   func(t time.Time) string { return ago(time.Since(t)) },
	"age":   age,
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"utc":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"count": counted,

	"bytes":   size,
	"plural":  plural,
	"visible": whole,
	"brief":   brief,
	"name":    name,
	"field":   formField,
	"few":     few,
	"beyond":  beyond,
	"asset":   assetLink,
	"link":    link,
	"words":   words,
	"list":    func(items ...any) []any { return items },
}

// page is the data of layout.html.
type page struct {
	Title    string
	Template string // name of the file in templates
	Section  string // menu item that is highlighted
	Live     int    // number of seconds after which the page loads new values, or 0
	Charts   bool   // whether the page can contain a chart
	Body     any

	// writePage sets the fields from here on, but Actor only if it is empty.
	Self        string // relative URL with the query, to load the page again
	Environment string
	Color       Color
	Actor       string
	Now         time.Time
}

// show always returns nil, so that a page can end with "return c.show(...)".
func (c *Console) show(w http.ResponseWriter, r *http.Request, p page) error {
	c.writePage(w, r, http.StatusOK, p)
	return nil
}

// The page is rendered before the first byte is sent: a complete page, or an error.
func (c *Console) writePage(w http.ResponseWriter, r *http.Request, status int, p page) {
	if inAPI(r) {
		c.writeJSON(w, status, p.Body)
		return
	}
	p.Self = self(r)
	p.Environment, p.Color, p.Now = c.config.Environment, c.config.Color, time.Now()
	if p.Actor == "" && status < http.StatusBadRequest {
		p.Actor, _ = c.ask(r, Look)
	}
	var out bytes.Buffer
	if err := templates[p.Template].ExecuteTemplate(&out, "layout.html", p); err != nil {
		c.config.Logger.Error("Console page cannot be rendered", err, nil)
		http.Error(w, "The page failed; the log of the service says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

func self(r *http.Request) string {
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if name == "" {
		name = "./"
	}
	if r.URL.RawQuery != "" {
		name += "?" + r.URL.Query().Encode()
	}
	return name
}

// mostListed is the maximum number of elements of a list without pages.
const mostListed = 100

// Templates cannot call generic functions.
func few(list any) any {
	all := reflect.ValueOf(list)
	return all.Slice(0, min(all.Len(), mostListed)).Interface()
}

func beyond(list any) int { return max(0, reflect.ValueOf(list).Len()-mostListed) }

// The library stores no longer names in bytes, but a row can contain one.
const longestLinked = 4096

// link returns a relative URL with pairs of names and values. "" and 0 are no filter, and left out.
// If a value is too long, it returns "".
func link(page string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		text := fmt.Sprint(pairs[i+1])
		if len(text) > longestLinked {
			return ""
		}
		if _, isText := pairs[i+1].(string); text != "" && (isText || text != "0") {
			query.Add(fmt.Sprint(pairs[i]), text)
		}
	}
	if len(query) == 0 {
		return page
	}
	return page + "?" + query.Encode()
}

// After a redirect, reloading the page does not repeat the change.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// d is negative for a moment in the future.
func ago(d time.Duration) string {
	if d < 0 {
		return "in " + age(-d)
	}
	if d < time.Second {
		return "now"
	}
	return age(d) + " ago"
}

func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "under 1 s"
	case d < 100*time.Second:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < 100*time.Minute:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func counted(n any) string {
	if big, ok := n.(int64); ok {
		return count(big)
	}
	return count(n.(int)) //nolint:forcetypeassert // a template is a part of the program
}

func size(n int) string {
	switch {
	case n < 1<<10:
		return plural(n, "byte", "bytes")
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func plural(n int, noun, nouns string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + nouns
}

func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }

// The rows of a database can contain longer texts, in bytes.
const (
	longestText = 64 << 10
	longestCell = 4 << 10
)

func brief(text string) string { return visible(shortened(text, longestCell)) }

func whole(text string) string { return visible(shortened(text, longestText)) }

// name works like brief, and shows line breaks, tabs, and blanks at the ends.
func name(text string) string {
	var b strings.Builder
	for _, r := range brief(text) {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r != ' ' && unicode.Is(unicode.Zs, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return meta.ShowBlanks(b.String())
}

func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return string(beginning([]byte(text[:limit+1]), limit)) + "… (cut)"
}

// visible replaces characters that a browser would not show, or that would change the order of
// their neighbors, by their codes: names, errors and payloads come from other programs.
func visible(text string) string {
	if !strings.ContainsFunc(text, hidden) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)): // an invalid byte
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029')
}

// assets/SHA256SUMS contains the checksums of the files that come from other projects.
//
//go:embed assets/*.js assets/*.css assets/*.svg
var files embed.FS

// The URL of an asset contains its version, of its checksum, so a browser may keep it forever.
type asset struct {
	content   []byte
	mediaType string
	version   string
}

var assets = readAssets()

func readAssets() map[string]asset {
	all := map[string]asset{}
	entries, err := files.ReadDir("assets")
	if err != nil {
		panic(err) // cannot fail: the files are embedded in the program
	}
	for _, entry := range entries {
		content, err := files.ReadFile("assets/" + entry.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		mediaType := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.Ext(entry.Name())]
		all[entry.Name()] = asset{content, mediaType + "; charset=utf-8", hex.EncodeToString(sum[:6])}
	}
	return all
}

func assetLink(name string) string { return name + "?v=" + assets[name].version }

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", a.mediaType)
	w.Header().Set("Cache-Control", "no-cache")
	if strings.HasPrefix(r.URL.RawQuery, "v="+a.version) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	w.Header().Set("ETag", `"`+a.version+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.content))
}
