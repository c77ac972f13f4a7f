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
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates contains a template for each page, by the name of the page. Each template
// consists of layout.html and the content of the page.
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
	"visible": visible,
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

	// writePage sets the following fields, but Actor only if it is empty.
	Self        string // relative URL with the query, to load the page again
	Environment string
	Color       Color
	Actor       string
	Now         time.Time
}

// show writes a page with status 200. It always returns nil, so that a function that
// serves a page can end with "return c.show(...)".
func (c *Console) show(w http.ResponseWriter, r *http.Request, p page) error {
	c.writePage(w, r, http.StatusOK, p)
	return nil
}

// writePage renders the whole page before it sends the first byte. So the browser
// receives either a complete page or an error.
func (c *Console) writePage(w http.ResponseWriter, r *http.Request, status int, p page) {
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

// self returns the relative URL of the requested page with its query.
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

// link returns a relative URL. In the parameter pairs, each name in the query is followed
// by its value. Pairs with the value "" or 0 are left out.
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

// redirect redirects the browser to another page after a change. If the user then
// reloads the page, the change is not repeated.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// ago returns a string such as "5 min ago" or "in 5 min". The parameter d is the time
// that has passed since the moment. It is negative if the moment is in the future.
func ago(d time.Duration) string {
	if d < 0 {
		return "in " + age(-d)
	}
	if d < time.Second {
		return "now"
	}
	return age(d) + " ago"
}

// age returns a duration as text, rounded down to its largest unit.
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

// count returns a number as text, with a comma between thousands.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// counted works like count. Templates call it with an int or an int64.
func counted(n any) string {
	if big, ok := n.(int64); ok {
		return count(big)
	}
	return count(n.(int)) //nolint:forcetypeassert // a template is a part of the program
}

// size returns a number of bytes as text, with a unit.
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

// words replaces the underscores in a name, such as backing_off, with spaces.
func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }
