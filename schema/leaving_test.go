package schema_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// The SQL of the page about leaving removes everything that the migrations have created.
func TestLeavingRemovesEverything(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/leaving.md")
	if err != nil {
		t.Fatal(err)
	}
	drop := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(page)
	if drop == nil {
		t.Fatal("docs/leaving.md has no SQL")
	}
	db := kit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), string(drop[1])); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := db.QueryRowContext(t.Context(), `SELECT COALESCE(string_agg(name, ', '), '') FROM (
		SELECT relname AS name FROM pg_class UNION SELECT proname FROM pg_proc UNION SELECT typname FROM pg_type
	) AS objects WHERE name LIKE '%once\_%'`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != "" {
		t.Errorf("%s are left", left)
	}
}
