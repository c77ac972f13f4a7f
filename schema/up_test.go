package schema_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

func configFor(db kit.Database) schema.Config {
	return schema.Config{Dialect: schema.Dialect(db.Dialect)}
}

func TestUpThenCheck(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := configFor(db)
		const missing = `schema: the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`
		if err := schema.Check(t.Context(), db.DB, config); !errors.Is(err, schema.ErrMissing) || err.Error() != missing {
			t.Fatalf("before: %v, want %s", err, missing)
		}
		for range 2 {
			kit.OK(t, schema.Up(t.Context(), db.DB, config))
			kit.OK(t, schema.Check(t.Context(), db.DB, config))
		}
	})
}

func TestCheckDistinguishesOutdatedFromNewer(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := configFor(db)
		kit.OK(t, schema.Up(t.Context(), db.DB, config))
		set := func(version, compatibleFrom int) {
			t.Helper()
			for _, query := range []string{
				`DELETE FROM once_migrations`,
				fmt.Sprintf(`INSERT INTO once_migrations (version, compatible_from) VALUES (%d, %d)`, version, compatibleFrom),
			} {
				kit.Exec(t, db, query)
			}
		}
		both := func() map[string]error {
			return map[string]error{
				"schema: ":     schema.Check(t.Context(), db.DB, config),
				"schema: up: ": schema.Up(t.Context(), db.DB, config),
			}
		}
		own := schema.Version()
		set(own-1, own-1)
		if err := schema.Check(t.Context(), db.DB, config); !errors.Is(err, schema.ErrOutdated) || err.Error() != fmt.Sprintf(
			"schema: the tables are older than this code: they have version %d, this code needs %d: "+
				"run schema.Up, or apply schema.SQLFrom(config, %d)", own-1, own, own-1) {
			t.Errorf("older: %v, want ErrOutdated", err)
		}
		set(own+2, own+1)
		for begin, err := range both() {
			if !errors.Is(err, schema.ErrNewer) || err.Error() != fmt.Sprintf(begin+"the tables are newer than this code: "+
				"they have version %d, which needs code of version %d or later, but this code has version %d: "+
				"deploy the newer code, or restore a backup from before the migration", own+2, own+1, own) {
				t.Errorf("%son newer: %v, want ErrNewer", begin, err)
			}
		}
		set(own+2, own)
		for begin, err := range both() {
			if err != nil {
				t.Errorf("%son newer tables that this code works with: %v", begin, err)
			}
		}
	})
}

// Trap 30. Forty services start at the same time, and every call of Up succeeds. With
// only CREATE TABLE IF NOT EXISTS, most calls would fail in PostgreSQL's catalogue.
func TestTrap30FortyProcessesCallUp(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
			kit.Check(t, err)
		}
		kit.OK(t, schema.Check(t.Context(), db.DB, config))
	})
}

// Trap 30. Up sees the migrations of other processes at any default isolation level. If
// its snapshot were older than the lock, Up would apply these migrations again.
func TestTrap30ManyProcessesCallUpWithAnyIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			db := kit.Postgres(t)
			kit.Exec(t, db, `DO $$BEGIN
				EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+isolation+`'); END$$`)
			db.SetMaxIdleConns(0) // a new connection uses the new default
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					kit.Check(t, schema.Up(t.Context(), db.DB, schema.Config{}))
				})
			}
			all.Wait()
		})
	}
}

// Trap 30. A connection that changes a new SQLite file to WAL fails at once while another
// process does the same, and Up tries again.
func TestTrap30UpWaitsUntilItCanConnectToSQLite(t *testing.T) {
	t.Parallel()
	file := "file:" + filepath.Join(t.TempDir(), "new.db")
	open := func(parameters string) *sql.DB {
		db, err := sql.Open("sqlite", file+parameters)
		kit.OK(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	other := open("?_txlock=exclusive")
	tx := kit.Begin(t, other)
	kit.Exec(t, tx, `CREATE TABLE others (id INTEGER)`)
	config := schema.Config{Dialect: schema.SQLite}
	db := open("?_pragma=journal_mode(WAL)")
	ended := kit.Go(func() error { return schema.Up(t.Context(), db, config) })
	select {
	case err := <-ended:
		t.Fatalf("Up did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	kit.OK(t, tx.Commit())
	kit.Check(t, <-ended)
}

// Up restores the settings of its connection, because the connection belongs to the
// caller's pool.
func TestUpRestoresConnectionSettings(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	db.SetMaxOpenConns(1)
	kit.OK(t, schema.Up(t.Context(), db.DB, configFor(db)))
	var timeout int
	if err := db.QueryRowContext(t.Context(), `PRAGMA busy_timeout`).Scan(&timeout); err != nil || timeout != 10_000 {
		t.Fatalf("%v, the timeout is %d", err, timeout)
	}
}

func TestSQLEqualsUp(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := configFor(db)
		config.Prefix = "mine_"
		text, err := schema.SQL(config)
		kit.OK(t, err)
		kit.Exec(t, db, text)
		kit.OK(t, schema.Check(t.Context(), db.DB, config))
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatalf("Up after SQL: %v", err)
		}
	})
}

func TestFailedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		// The last table of the migration exists already, so the migration fails.
		kit.Exec(t, db, `CREATE TABLE once_audit (x integer)`)
		err := schema.Up(t.Context(), db.DB, configFor(db))
		const where, why = "schema: up: migration 0001 tables: ", `"once_audit" already exists`
		if err == nil || !strings.HasPrefix(err.Error(), where) || !strings.Contains(err.Error(), why) {
			t.Fatalf("got %v, want %s... %s", err, where, why)
		}
		if err := schema.Check(t.Context(), db.DB, configFor(db)); !errors.Is(err, schema.ErrMissing) {
			t.Fatalf("after the failure: %v, want ErrMissing", err)
		}
	})
}

func TestUpDoesNotNeedRightToCreateExistingSchema(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	role := fmt.Sprintf("once_test_%x", strings.Map(keepDigits, t.TempDir()))
	for _, statement := range []string{
		`CREATE ROLE ` + role,
		`CREATE SCHEMA app AUTHORIZATION ` + role,
	} {
		kit.Exec(t, db, statement)
	}
	t.Cleanup(func() {
		_, err := db.Exec(`DROP SCHEMA app CASCADE; DROP ROLE ` + role)
		kit.Check(t, err)
	})
	db.SetMaxOpenConns(1) // makes sure that the role applies to all queries
	kit.Exec(t, db, `SET ROLE `+role)
	kit.Check(t, schema.Up(t.Context(), db.DB, schema.Config{Schema: "app"}))
	kit.OK(t, kit.Err(db.Exec(`RESET ROLE`)))
}

func keepDigits(r rune) rune {
	if r < '0' || r > '9' {
		return -1
	}
	return r
}

// Both dialects have the same tables and columns, so that one query can be written for
// both.
func TestDialectsHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	columns := func(db kit.Database, query string) []string {
		kit.OK(t, schema.Up(t.Context(), db.DB, configFor(db)))
		rows, err := db.QueryContext(t.Context(), query)
		kit.OK(t, err)
		defer rows.Close()
		var all []string
		for rows.Next() {
			var table, column string
			var notNull bool
			kit.OK(t, rows.Scan(&table, &column, &notNull))
			all = append(all, fmt.Sprintf("%s.%s", table, column))
		}
		if err := rows.Err(); err != nil && !errors.Is(err, sql.ErrNoRows) {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	pg := columns(kit.Postgres(t), `
		SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns
		WHERE table_name LIKE 'once\_%' AND table_name <> 'once_parked_messages' -- a view, which SQLite has not`)
	lite := columns(kit.SQLite(t), `
		SELECT m.name, c.name, c."notnull" FROM sqlite_schema m JOIN pragma_table_info(m.name) c
		WHERE m.type = 'table' AND m.name LIKE 'once\_%' ESCAPE '\'`)
	if len(pg) < 30 || !slices.Equal(pg, lite) {
		t.Fatalf("PostgreSQL has %d columns, SQLite %d:\n%v\n%v", len(pg), len(lite), pg, lite)
	}
}

func openPostgres(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// The text of SQLFrom changes older tables in the same way as Up. If the tables have
// another version, the text fails and changes nothing.
func TestSQLFromFitsOneVersionOnly(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := configFor(db)
		all, err := schema.SQLFrom(config, 0)
		kit.OK(t, err)
		if whole, err := schema.SQL(config); err != nil || whole != all {
			t.Errorf("SQL is not SQLFrom 0: %v", err)
		}
		if rest, err := schema.SQLFrom(config, schema.Version()); err != nil || rest != "" {
			t.Errorf("after the last: %q, %v", rest, err)
		}
		for _, version := range []int{-1, schema.Version() + 1} {
			_, err := schema.SQLFrom(config, version)
			want := fmt.Sprintf("schema: version %d is unknown: this code knows versions 0 to %d", version, schema.Version())
			if err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if _, err := schema.SQLFrom(schema.Config{Dialect: "oracle"}, 0); err == nil {
			t.Error("no error for the dialect")
		}
	})
}
