package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/parked"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates are the pages by their names. Each is layout.html with one page.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	shared := template.Must(template.New("layout.html").Funcs(functions).
		ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	entries, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // the files are a part of the program
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

	"countLimit": func() int { return parked.CountLimit },
	"bytes":      size,
	"plural":     plural,
	"visible":    visible,
	"asset":      assetLink,
	"link":       link,
	"words":      words,
	"list":       func(items ...any) []any { return items },
}

// page is what layout.html shows.
type page struct {
	Title    string
	Template string // the name of the file in templates
	Section  string // the item of the menu that is marked
	Live     int    // seconds until the page shows new values, or 0
	Charts   bool   // the page can have a chart
	Body     any

	// The rest is set by writePage.
	Self               string // the page with its query, to load it again
	Environment        string
	Color              Color
	Actor              string
	Now                time.Time
	Message            string // of the change before
	ReadOnly, HasError bool
}

// show writes a page if the person may look.
func (c *Console) show(w http.ResponseWriter, r *http.Request, p page) error {
	c.writePage(w, r, http.StatusOK, p)
	return nil
}

// writePage renders a page before it writes anything, so that a page is complete or
// an error.
func (c *Console) writePage(w http.ResponseWriter, r *http.Request, status int, p page) {
	p.Self = self(r)
	p.Environment, p.Color, p.Now = c.config.Environment, c.config.Color, time.Now()
	p.HasError = status >= http.StatusBadRequest
	if p.Actor == "" && !p.HasError {
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

// self returns the relative URL of a page with its query.
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

// link returns a relative URL with the pairs of names and values that are not empty.
func link(page string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if text := fmt.Sprint(pairs[i+1]); text != "" && text != "0" {
			query.Add(fmt.Sprint(pairs[i]), text)
		}
	}
	if len(query) == 0 {
		return page
	}
	return page + "?" + query.Encode()
}

// redirect leads to another page after a change, so that a reload does not repeat it.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// ago renders a duration until now.
func ago(d time.Duration) string {
	if d < 0 {
		return "in " + age(-d)
	}
	if d < time.Second {
		return "now"
	}
	return age(d) + " ago"
}

// age renders a duration with its largest unit.
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

// count renders a number with separators.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// counted is like count, for a number of any type in a template.
func counted(n any) string {
	if big, ok := n.(int64); ok {
		return count(big)
	}
	return count(n.(int)) //nolint:forcetypeassert // a template is a part of the program
}

// size renders a number of bytes.
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

// words turns a name such as backing_off into words.
func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }
