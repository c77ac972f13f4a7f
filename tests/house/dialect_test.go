package house

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/schema"
)

// refusedBefore lists methods that refuse the arguments of the test before they use the
// database.
var refusedBefore = map[string]bool{
	"outbox.Outbox.InTx": true, "outbox.Outbox.LockKey": true, "outbox.Outbox.LockStatement": true,
	"quarantine.Entries.Import": true, "reconcile.Sender.Read": true, "reconcile.Receiver.Answer": true, "reconcile.Archive.Keep": true,
}

var version = regexp.MustCompile(`(SQLite|PostgreSQL) [0-9.]+`)

// With the wrong dialect, every statement is a syntax error. The errors of all methods
// must name the kind of the database and the remedy instead. Their texts are in
// tests/house/testdata/dialect.txt.
func TestErrorsNameTheWrongDialect(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("tests/house/testdata/dialect.txt")
	kit.OK(t, err)
	const remedy = `schema: check: the database is not of the kind that Dialect names: `
	for name, test := range map[string]struct {
		db    *sql.DB
		wrong schema.Dialect
		says  string
	}{
		"SQLite": {
			kit.SQLite(t).DB, schema.PostgreSQL,
			remedy + `Dialect is "postgres", the database is SQLite VERSION: set Config.Dialect to schema.SQLite`,
		},
		"PostgreSQL": {
			kit.Postgres(t).DB, schema.SQLite,
			remedy + `Dialect is "sqlite", the database is PostgreSQL VERSION: set Config.Dialect to schema.PostgreSQL`,
		},
		"MariaDB": {
			kit.MariaDB(t), schema.PostgreSQL,
			remedy + `Dialect is "postgres", the database is 10.11.19-MariaDB-0+deb12u1: there is no dialect for it, use PostgreSQL or SQLite`,
		},
		"MariaDB behind the dialect of SQLite": {
			kit.MariaDB(t), schema.SQLite,
			remedy + `Dialect is "sqlite", the database is 10.11.19-MariaDB-0+deb12u1: there is no dialect for it, use PostgreSQL or SQLite`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			note := func(method string, err error) {
				if !errors.Is(err, schema.ErrDialect) {
					t.Errorf("%s: %v", method, err)
					return
				}
				text := version.ReplaceAllString(err.Error(), "$1 VERSION")
				said = append(said, method+": "+strings.NewReplacer(test.says, "REMEDY", "\n", "; ").Replace(text))
			}
			for _, p := range parts() {
				if p.opened == nil {
					continue
				}
				part, err := p.opened(test.db, schema.Config{Dialect: test.wrong})
				kit.OK(t, err)
				for method, err := range methods(t, part) {
					name := fmt.Sprintf("%T.%s", part, method)[1:]
					if !withoutDatabase[method] && !refusedBefore[name] && (name != "dead.SentLog.SweepDays" || test.wrong != schema.SQLite) {
						note(name, err)
					}
				}
			}
			checks, err := health.New(test.db, health.Config{Schema: schema.Config{Dialect: test.wrong}})
			kit.OK(t, err)
			note("health.Health.Health", checks.Health(t.Context()).Err())
			note("schema.Durability", schema.Durability(t.Context(), test.db, schema.Config{Dialect: test.wrong}))
			if test.wrong == schema.PostgreSQL { // the mover and rights are only for PostgreSQL
				stock, err := mover.New(test.db, mover.Config{})
				kit.OK(t, err)
				for method, err := range methods(t, stock) {
					if method == "Run" { // methods ends Run soon, on a slow machine before it has asked the database
						err = stock.Run(t.Context())
					}
					note("mover.Mover."+method, err)
				}
				note("schema.CheckRights", schema.CheckRights(t.Context(), test.db, schema.Config{}, "consumer"))
			}
			for _, line := range said {
				if !slices.Contains(strings.Split(string(golden), "\n"), line) {
					t.Errorf("not in tests/house/testdata/dialect.txt: %s", line)
				}
			}
		})
	}
}
