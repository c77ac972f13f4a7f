package testkit_test

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestUsesTables(t *testing.T) {
	onlyAgain(t)
	testkit.UseTables()
	for _, c := range []struct {
		change string
		reused bool
	}{
		{"INSERT INTO once_versions SELECT 'c', 't', i::text, i, 1, now() FROM generate_series(1, 10) AS i", true},
		{"DELETE FROM once_slots WHERE slot > 3", true},
		{"UPDATE once_slots SET owner = 'somebody'; SELECT nextval('once_outbox_position')", true},
		{"CREATE TABLE orders (id bigserial PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM orders", true},
		{"CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, text text)", true},
		{"CREATE SEQUENCE alone; CREATE SCHEMA service", true},
		{`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER t BEFORE INSERT ON once_inbox FOR EACH ROW EXECUTE FUNCTION f()`, true},
		{"ALTER TABLE once_inbox ADD COLUMN more int", false},
		{"ALTER TABLE once_parked ALTER COLUMN topic SET DEFAULT 'x'", false},
		{"ALTER TABLE once_parked SET (fillfactor = 50)", false},
		{"DROP TABLE once_idempotency_keys", false},
		{"DROP INDEX once_parked_due", false},
		{"ALTER INDEX once_parked_due RENAME TO once_parked_other", false},
		{"GRANT SELECT ON once_parked TO pg_monitor", false},
		{"GRANT SELECT (topic) ON once_parked TO pg_monitor", false},
		{"ALTER SEQUENCE once_outbox_position INCREMENT 2", false},
		{"ANALYZE once_slots", false},
	} {
		t.Run(c.change, func(t *testing.T) {
			var before, after, first, second string
			t.Run("first", func(t *testing.T) {
				db := testkit.Postgres(t)
				first, before = look(t, db)
				if _, err := db.ExecContext(t.Context(), c.change); err != nil {
					t.Fatal(err)
				}
			})
			t.Run("second", func(t *testing.T) { second, after = look(t, testkit.Postgres(t)) })
			if after != before {
				t.Errorf("the second test has\n%s\nand the first one had\n%s", after, before)
			}
			if (first == second) != c.reused {
				t.Errorf("table %s, then %s; want the same: %v", first, second, c.reused)
			}
		})
	}
}

// look returns the database and the OID of a table, and the content of the tables.
func look(t *testing.T, db testkit.Database) (table, content string) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `SELECT current_database() || ' ' || 'once_parked'::regclass::oid,
		concat_ws(';', (SELECT json_agg(s ORDER BY slot) FROM once_slots AS s), (SELECT json_agg(m) FROM once_migrations AS m),
			(SELECT count(*) FROM once_versions), nextval('once_outbox_position'),
			(SELECT json_agg(relname ORDER BY relname) FROM pg_class WHERE oid >= 16384 AND relname !~ '^pg_toast'),
			(SELECT count(*) FROM pg_trigger WHERE oid >= 16384), (SELECT count(*) FROM pg_proc WHERE oid >= 16384),
			(SELECT count(*) FROM pg_namespace WHERE nspname !~ '_temp_'), (SELECT sum(n_tup_del) FROM pg_stat_user_tables))`).Scan(&table, &content)
	if err != nil {
		t.Fatal(err)
	}
	return table, content
}

func TestUsedTablesAreLikeNewOnes(t *testing.T) {
	if output, err := rerun(t, "TestUsesTables"); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
