package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/schema"
)

// If the database is not of the configured kind, each page says so, and the log names
// both kinds.
func TestPagesNameTheWrongDialect(t *testing.T) {
	t.Parallel()
	b := quickBench(t, func(c *console.Config) { c.Schema = schema.Config{Dialect: schema.PostgreSQL} })
	const says = `<h1>This is another kind of database</h1>
<p class="note">Set Config.Schema.Dialect of the console to the kind of its database. The log of the service names both kinds.</p>`
	for _, page := range []string{"outbox", "message?id=1", "dead", "sent", "quarantine", "entry?id=1", "replays", "parked", "audit"} {
		a := b.do(http.MethodGet, page, nil)
		if a.StatusCode != http.StatusInternalServerError || !strings.Contains(a.text, says) {
			t.Errorf("%s: %d\n%s", page, a.StatusCode, a.text)
		}
		path, _, _ := strings.Cut(page, "?")
		if b.logs.Count("ERROR Console page failed page=/ops/once/"+path+" err=", `: schema: check: the database is not of the kind `+
			`that Dialect names: Dialect is "postgres", the database is SQLite `, ": set Config.Dialect to schema.SQLite") != 1 {
			t.Errorf("%s: %q", page, b.logs.Lines())
		}
	}
}
