package schema_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// fakeDatabase simulates a database that knows only one function, which returns its version.
type fakeDatabase struct{ function, version string }

func (a fakeDatabase) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (a fakeDatabase) Driver() driver.Driver                        { return nil }
func (a fakeDatabase) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }

func (a fakeDatabase) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }
func (a fakeDatabase) Close() error              { return nil }

func (a fakeDatabase) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if query != "SELECT "+a.function+"()" {
		return nil, fmt.Errorf("unknown query %s", query)
	}
	return &fakeRows{a.version}, nil
}

func openFake(t *testing.T, a fakeDatabase) *sql.DB {
	t.Helper()
	db := sql.OpenDB(a)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type fakeRows struct{ text string }

func (a *fakeRows) Columns() []string { return []string{"version"} }
func (a *fakeRows) Close() error      { return nil }
func (a *fakeRows) Next(to []driver.Value) error {
	if a.text == "" {
		return io.EOF
	}
	to[0], a.text = a.text, ""
	return nil
}

var serverVersion = regexp.MustCompile(`(SQLite|PostgreSQL) [0-9.]+`)

// withoutVersion returns the text of an error, without the version of the test's server.
func withoutVersion(err error) string {
	return serverVersion.ReplaceAllString(err.Error(), "$1 VERSION")
}

func TestDatabaseOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	const begins = "the database is not of the kind that Dialect names: "
	for name, test := range map[string]struct {
		db     *sql.DB
		config schema.Config
		want   string
	}{
		"SQLite": {
			kit.SQLite(t).DB,
			schema.Config{},
			`Dialect is "postgres", the database is SQLite VERSION: set Config.Dialect to schema.SQLite`,
		},
		"PostgreSQL": {
			kit.Postgres(t).DB,
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is PostgreSQL VERSION: set Config.Dialect to schema.PostgreSQL`,
		},
		"MariaDB": {
			openFake(t, fakeDatabase{"version", "10.11.19-MariaDB-0+deb12u1"}),
			schema.Config{},
			`Dialect is "postgres", the database is 10.11.19-MariaDB-0+deb12u1: there is no dialect for it, use PostgreSQL or SQLite`,
		},
		"MySQL": {
			openFake(t, fakeDatabase{"version", "8.4.3"}),
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is MySQL 8.4.3: there is no dialect for it, use PostgreSQL or SQLite`,
		},
		"another": {
			openFake(t, fakeDatabase{"version", "Quack 1"}),
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is Quack 1: use a database of that kind`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for what, err := range map[string]error{
				"schema: up: ":    schema.Up(t.Context(), test.db, test.config),
				"schema: check: ": schema.Check(t.Context(), test.db, test.config),
			} {
				if !errors.Is(err, schema.ErrDialect) || withoutVersion(err) != what+begins+test.want {
					t.Errorf("got  %v\nwant %s", err, what+begins+test.want)
				}
			}
		})
	}
}

// Derivatives of PostgreSQL are accepted, because their versions begin with a name.
func TestDerivativesOfPostgreSQLAreAccepted(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"PostgreSQL 11.2-YB-2.25", "PostgreSQL 16.2 (EnterpriseDB)", "CockroachDB CCL v24"} {
		err := schema.Check(t.Context(), openFake(t, fakeDatabase{"version", version}), schema.Config{})
		if err == nil || errors.Is(err, schema.ErrDialect) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// A database of another kind is also refused in a transaction, in which PostgreSQL
// refuses every query after the first error.
func TestDatabaseOfAnotherKindIsRefusedInTransaction(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		other := map[string]schema.Dialect{"postgres": schema.SQLite, "sqlite": schema.PostgreSQL}[db.Dialect]
		tx, err := db.BeginTx(t.Context(), nil)
		kit.OK(t, err)
		defer func() { _ = tx.Rollback() }()
		want := map[string]string{
			"postgres": `Dialect is "sqlite", the database is not SQLite: use a database of that kind`,
			"sqlite":   `Dialect is "postgres", the database is SQLite VERSION: set Config.Dialect to schema.SQLite`,
		}[db.Dialect]
		want = "schema: check: the database is not of the kind that Dialect names: " + want
		err = schema.Check(t.Context(), tx, schema.Config{Dialect: other})
		if !errors.Is(err, schema.ErrDialect) || withoutVersion(err) != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// Trap 86: a database that cannot store every text is refused. Otherwise it would
// refuse or change a text later.
func TestDatabaseWithOtherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			db := kit.PostgresIn(t, encoding)
			name := kit.One[string](t, db, `SELECT current_database()`)
			want := fmt.Sprintf("the database is not in UTF-8: database %q is encoded in %s: "+
				"make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump and pg_restore",
				name, encoding)
			for what, err := range map[string]error{
				"schema: up: ":    schema.Up(t.Context(), db.DB, schema.Config{}),
				"schema: check: ": schema.Check(t.Context(), db.DB, schema.Config{}),
			} {
				if !errors.Is(err, schema.ErrEncoding) || err.Error() != what+want {
					t.Errorf("got  %v\nwant %s", err, what+want)
				}
			}
		})
	}
}

// SQLite in UTF-16 is accepted, because SQLite converts between its encodings.
func TestSQLiteInUTF16IsAccepted(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	db.SetMaxOpenConns(1)
	kit.Exec(t, db, `PRAGMA encoding = 'UTF-16'`)
	kit.Check(t, errors.Join(schema.Up(t.Context(), db.DB, configFor(db)), schema.Check(t.Context(), db.DB, configFor(db))))
}

// Trap 91. Durability names each setting that lets a crash undo a commit. If a message
// was acked after such a commit, the crash also loses the message.
func TestDurabilityNamesSettingThatLosesCommits(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	const begins = "schema: the database may lose commits in a crash: "
	private := kit.PrivatePostgres(t, "fsync=off")
	for name, test := range map[string]struct {
		db        kit.Database
		statement string
		want      string // "" if no error is expected
	}{
		"PostgreSQL":        {db: kit.Postgres(t)},
		"PostgreSQL, local": {db: kit.Postgres(t), statement: `SET synchronous_commit = local`},
		"SQLite":            {db: kit.SQLite(t)},
		"SQLite, FULL":      {db: kit.SQLite(t), statement: `PRAGMA synchronous = FULL`},
		"synchronous_commit": {
			kit.Postgres(t), `SET synchronous_commit = off`,
			"synchronous_commit is off: set it to on (ALTER ROLE ... SET synchronous_commit = on, or in the data source name)",
		},
		"unlogged": {
			kit.Postgres(t), `ALTER TABLE once_inbox SET UNLOGGED; ALTER TABLE once_audit SET UNLOGGED`,
			"unlogged tables (once_inbox) are empty after a crash: run ALTER TABLE ... SET LOGGED",
		},
		"fsync": {
			kit.Database{DB: openPostgres(t, private.DSN("postgres")), Dialect: "postgres"},
			"",
			"fsync is off: set it to on in postgresql.conf",
		},
		"SQLite, OFF": {
			kit.SQLite(t), `PRAGMA synchronous = OFF`,
			"PRAGMA synchronous is OFF: set it to NORMAL or FULL in the data source name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.db.SetMaxOpenConns(1) // makes sure that the setting applies to all queries
			test.db.SetConnMaxIdleTime(0)
			config := configFor(test.db)
			kit.OK(t, schema.Up(t.Context(), test.db.DB, config))
			kit.Exec(t, test.db, test.statement)
			err := schema.Durability(t.Context(), test.db.DB, config)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, schema.ErrNotDurable) || err.Error() != begins+test.want):
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// Trap 116. With row level security, PostgreSQL hides rows without an error. A role for
// which it is active on one of the tables is refused, even if a policy allows all rows.
func TestTrap116_CheckRefusesRowLevelSecurity(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	byDay := schema.Config{Inbox: schema.ByDay}
	kit.OK(t, schema.Up(t.Context(), db.DB, byDay))
	name := kit.One[string](t, db, `SELECT current_database()`)
	role := name + "_rls"
	exec(t, db.DB, `CREATE ROLE "`+role+`"`,
		fmt.Sprintf(`GRANT SELECT ON once_migrations, once_outbox, once_inbox TO %q; GRANT INSERT (topic) ON once_parked TO %[1]q`, role))
	db.SetMaxOpenConns(1) // so that SET ROLE applies to all statements
	t.Cleanup(func() {
		kit.Check(t, kit.Err(db.Exec(fmt.Sprintf(`RESET ROLE; DROP OWNED BY %q; DROP ROLE %[1]q`, role))))
	})

	for _, c := range []struct{ behaviour, before, table string }{
		{"no row level security", `SELECT 1`, ""},
		{"a table without a policy", `ALTER TABLE once_outbox ENABLE ROW LEVEL SECURITY`, "once_outbox"},
		{"a policy that allows all rows", `CREATE POLICY everybody ON once_outbox USING (true)`, "once_outbox"},
		{"row_security is off", `SET row_security = off`, "once_outbox"},
		{"a role that may bypass it", fmt.Sprintf(`ALTER ROLE %q BYPASSRLS`, role), ""},
		{"it may not any more", fmt.Sprintf(`RESET row_security; ALTER ROLE %q NOBYPASSRLS`, role), "once_outbox"},
		{"a second table, with a right on a column", `ALTER TABLE once_parked ENABLE ROW LEVEL SECURITY`, "once_outbox, once_parked"},
		{"a table that the role may not use", `ALTER TABLE once_outbox DISABLE ROW LEVEL SECURITY;
			ALTER TABLE once_parked DISABLE ROW LEVEL SECURITY;
			ALTER TABLE once_audit ENABLE ROW LEVEL SECURITY`, ""},
		{"the owner", fmt.Sprintf(`ALTER TABLE once_audit OWNER TO %q`, role), ""},
		{"the owner, forced", `ALTER TABLE once_audit FORCE ROW LEVEL SECURITY`, "once_audit"},
		{"a partition", fmt.Sprintf(`ALTER TABLE once_audit DISABLE ROW LEVEL SECURITY; ALTER TABLE once_inbox_default ENABLE ROW LEVEL SECURITY;
			GRANT SELECT ON once_inbox_default TO %q`, role), "once_inbox_default"},
	} {
		exec(t, db.DB, `RESET ROLE`, c.before, fmt.Sprintf(`SET ROLE %q`, role))
		err := schema.Check(t.Context(), db.DB, byDay)
		if c.table == "" {
			if err != nil {
				t.Errorf("%s: %v", c.behaviour, err)
			}
			continue
		}
		first, _, _ := strings.Cut(c.table, ",")
		want := fmt.Sprintf("schema: row level security may hide rows: it is active for user %q on %s: for each of these tables, "+
			"run ALTER TABLE %s DISABLE ROW LEVEL SECURITY, or exempt the user with ALTER ROLE %[1]q BYPASSRLS", role, c.table, first)
		if !errors.Is(err, schema.ErrRowSecurity) || err.Error() != want {
			t.Errorf("%s: got\n%v, want\n%s", c.behaviour, err, want)
		}
	}
}

// Trap 118. Logical replication and a partial restore do not copy sequences. Check
// returns the SQL that repairs them.
func TestTrap118_CheckPrintsTheRepairOfSequences(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	byDay := schema.Config{Sent: schema.ByDay}
	kit.OK(t, schema.Up(t.Context(), db.DB, byDay))
	add := func(id, key string, age int) {
		t.Helper()
		exec(t, db.DB, fmt.Sprintf(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
			VALUES ('%s', 't', '%s', 1, '', '{}')`, id, key),
			fmt.Sprintf(`UPDATE once_outbox SET created_at = now() - %d * interval '1 minute' WHERE message_id = '%s'`, age, id))
	}
	check := func(when string, behind ...string) string {
		t.Helper()
		err := schema.Check(t.Context(), db.DB, byDay)
		if len(behind) == 0 {
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			return ""
		}
		begin := "schema: a sequence is behind its table: " + strings.Join(behind, ", ") + ": run "
		if !errors.Is(err, schema.ErrSequence) || !strings.HasPrefix(err.Error(), begin) {
			t.Fatalf("%s: got\n%v, want\n%s...", when, err, begin)
		}
		return strings.TrimPrefix(err.Error(), begin)
	}
	check("new tables")
	exec(t, db.DB, `SELECT setval('once_outbox_position', 10)`)
	for i, age := range []int{9, 8, 7} {
		add(fmt.Sprintf("old%d", i), "k", age)
	}
	check("a sequence at the end of its table")

	exec(t, db.DB, `SELECT setval('once_outbox_position', 1, false)`)
	for i, age := range []int{2, 1} {
		add(fmt.Sprintf("new%d", i), "k", age)
	}
	exec(t, db.DB, `INSERT INTO once_audit (actor, action, subject) VALUES ('a', 'note', 's'), ('a', 'note', 's')`,
		`ALTER SEQUENCE once_audit_id_seq RESTART WITH 2`)
	repair := check("two sequences behind", `public.once_audit_id_seq is at 2, but public.once_audit already has the number 2`,
		`public.once_outbox_position is at 2, but public.once_outbox already has the number 13`)
	if want := `SELECT setval('public.once_audit_id_seq', 2); BEGIN; `; !strings.HasPrefix(repair, want) {
		t.Errorf("the repair is %s, want %s...", repair, want)
	}
	exec(t, db.DB, repair)
	check("after the repair")
	add("last", "k", 0)
	var order string
	err := db.QueryRowContext(t.Context(), `SELECT string_agg(message_id, ' ' ORDER BY position) FROM once_outbox`).Scan(&order)
	if want := "old0 old1 old2 new0 new1 last"; err != nil || order != want {
		t.Errorf("the order is %q, %v, want %q", order, err, want)
	}

	// The successors of a blocked key have higher positions than the number of the key.
	exec(t, db.DB, `DELETE FROM once_outbox`, `SELECT setval('once_outbox_position', 3)`,
		`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason, blocked_at)
		 VALUES ('k', 40, 41, 'dead', now() - interval '1 minute')`)
	add("successor", "k", 0)
	exec(t, db.DB, check("a blocked key", `public.once_outbox_position is at 4, but public.once_outbox already has the number 41`))
	check("after the repair of a blocked key")
	var position int
	if err := db.QueryRowContext(t.Context(), `SELECT position FROM once_outbox`).Scan(&position); err != nil || position != 42 {
		t.Errorf("the successor has position %d, %v, want 42", position, err)
	}
}
