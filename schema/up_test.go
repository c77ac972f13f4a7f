package schema_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func configFor(db testkit.Database) schema.Config {
	return schema.Config{Dialect: schema.Dialect(db.Dialect)}
}

func TestUpThenCheck(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := configFor(db)
		if err := schema.Check(t.Context(), db.DB, config); !errors.Is(err, schema.ErrMissing) {
			t.Fatalf("before: %v, want ErrMissing", err)
		}
		for range 2 {
			if err := schema.Up(t.Context(), db.DB, config); err != nil {
				t.Fatal(err)
			}
			if err := schema.Check(t.Context(), db.DB, config); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestADatabaseOfTheOtherKindIsTold(t *testing.T) {
	other := map[string]schema.Dialect{string(schema.PostgreSQL): schema.SQLite, string(schema.SQLite): schema.PostgreSQL}
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: other[db.Dialect]}
		for what, err := range map[string]error{
			"Up":    schema.Up(t.Context(), db.DB, config),
			"Check": schema.Check(t.Context(), db.DB, config),
		} {
			if !errors.Is(err, schema.ErrDialect) || !strings.Contains(err.Error(), string(config.Dialect)) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestCheckTellsOutdatedFromNewer(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := configFor(db)
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		set := func(version int) {
			t.Helper()
			query := fmt.Sprintf(`UPDATE once_migrations SET version = %d WHERE version = (SELECT MAX(version) FROM once_migrations)`, version)
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		set(0)
		if err := schema.Check(t.Context(), db.DB, config); !errors.Is(err, schema.ErrOutdated) {
			t.Errorf("older: %v, want ErrOutdated", err)
		}
		set(schema.Version() + 1)
		if err := schema.Check(t.Context(), db.DB, config); !errors.Is(err, schema.ErrNewer) {
			t.Errorf("newer: %v, want ErrNewer", err)
		}
		if err := schema.Up(t.Context(), db.DB, config); !errors.Is(err, schema.ErrNewer) {
			t.Errorf("Up on newer: %v, want ErrNewer", err)
		}
	})
}

// Forty services start at once: with CREATE TABLE IF NOT EXISTS alone most of
// them fail in PostgreSQL's catalogue.
func TestTrap30FortyAtOnce(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := configFor(db)
		if config.Dialect == schema.PostgreSQL {
			config.Schema = "many"
		}
		const callers = 40
		errs := make(chan error, callers)
		var start, all sync.WaitGroup
		start.Add(1)
		for range callers {
			all.Go(func() {
				start.Wait()
				errs <- schema.Up(t.Context(), db.DB, config)
			})
		}
		start.Done()
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		if err := schema.Check(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
	})
}

// A snapshot of before the lock would have them apply what is there by then.
func TestTrap30ManyAtOnceWhateverTheIsolation(t *testing.T) {
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			db := testkit.Postgres(t)
			_, err := db.ExecContext(t.Context(), `DO $$BEGIN
				EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+isolation+`'); END$$`)
			if err != nil {
				t.Fatal(err)
			}
			db.SetMaxIdleConns(0) // a new connection has the new default
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
}

// The connection is the caller's, and Up may be called in mid-operation.
func TestUpLeavesConnectionsAsTheyWere(t *testing.T) {
	db := testkit.SQLite(t)
	db.SetMaxOpenConns(1)
	if err := schema.Up(t.Context(), db.DB, configFor(db)); err != nil {
		t.Fatal(err)
	}
	var timeout int
	if err := db.QueryRowContext(t.Context(), `PRAGMA busy_timeout`).Scan(&timeout); err != nil || timeout != 10_000 {
		t.Fatalf("%v, the timeout is %d", err, timeout)
	}
}

func TestSQLIsWhatUpDoes(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := configFor(db)
		config.Prefix = "mine_"
		text, err := schema.SQL(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		if err := schema.Check(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatalf("Up after SQL: %v", err)
		}
	})
}

func TestAFailingMigrationLeavesNothing(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		// The last table of the migration is in the way.
		if _, err := db.ExecContext(t.Context(), `CREATE TABLE once_audit (x integer)`); err != nil {
			t.Fatal(err)
		}
		err := schema.Up(t.Context(), db.DB, configFor(db))
		if err == nil || !strings.Contains(err.Error(), "0001") || !strings.Contains(err.Error(), "once_audit") {
			t.Fatalf("error %v does not name the migration and the table", err)
		}
		if err := schema.Check(t.Context(), db.DB, configFor(db)); !errors.Is(err, schema.ErrMissing) {
			t.Fatalf("after the failure: %v, want ErrMissing", err)
		}
	})
}

func TestUpNeedsNoRightToCreateASchemaThatExists(t *testing.T) {
	db := testkit.Postgres(t)
	role := fmt.Sprintf("once_test_%x", strings.Map(keepDigits, t.TempDir()))
	for _, statement := range []string{
		`CREATE ROLE ` + role,
		`CREATE SCHEMA app AUTHORIZATION ` + role,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_, err := db.Exec(`DROP SCHEMA app CASCADE; DROP ROLE ` + role)
		if err != nil {
			t.Error(err)
		}
	})
	db.SetMaxOpenConns(1) // so that the role stays set
	if _, err := db.ExecContext(t.Context(), `SET ROLE `+role); err != nil {
		t.Fatal(err)
	}
	if err := schema.Up(t.Context(), db.DB, schema.Config{Schema: "app"}); err != nil {
		t.Error(err)
	}
	if _, err := db.Exec(`RESET ROLE`); err != nil {
		t.Fatal(err)
	}
}

func keepDigits(r rune) rune {
	if r < '0' || r > '9' {
		return -1
	}
	return r
}

// Both dialects have the same tables with the same columns, so that queries
// can be written once.
func TestDialectsHaveTheSameColumns(t *testing.T) {
	columns := func(db testkit.Database, query string) []string {
		if err := schema.Up(t.Context(), db.DB, configFor(db)); err != nil {
			t.Fatal(err)
		}
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var all []string
		for rows.Next() {
			var table, column string
			var notNull bool
			if err := rows.Scan(&table, &column, &notNull); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s.%s", table, column))
		}
		if err := rows.Err(); err != nil && !errors.Is(err, sql.ErrNoRows) {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	pg := columns(testkit.Postgres(t), `
		SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns WHERE table_name LIKE 'once\_%'`)
	lite := columns(testkit.SQLite(t), `
		SELECT m.name, c.name, c."notnull" FROM sqlite_schema m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name LIKE 'once\_%' ESCAPE '\'`)
	if len(pg) < 30 || !slices.Equal(pg, lite) {
		t.Fatalf("PostgreSQL has %d columns, SQLite %d:\n%v\n%v", len(pg), len(lite), pg, lite)
	}
}
