package schema_test

import (
	"regexp"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// The SQL of the page about leaving removes everything that the migrations have created.
func TestLeavingRemovesEverything(t *testing.T) {
	t.Parallel()
	page := kit.ReadFile(t, "../docs/leaving.md")
	drop := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(page)
	if drop == nil {
		t.Fatal("docs/leaving.md has no SQL")
	}
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	kit.Exec(t, db, string(drop[1]))
	var left string
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COALESCE(string_agg(name, ', '), '') FROM (
		SELECT relname AS name FROM pg_class UNION SELECT proname FROM pg_proc UNION SELECT typname FROM pg_type
	) AS objects WHERE name LIKE '%once\_%'`).Scan(&left))
	if left != "" {
		t.Errorf("%s are left", left)
	}
}
