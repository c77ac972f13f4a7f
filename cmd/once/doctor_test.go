package main

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// madeBy returns the findings of the checks with these names. Most tests leave out the
// checks of the server, because other tests use the server at the same time.
func madeBy(all doctorJSON, checks ...string) (found []finding) {
	for _, f := range all.Findings {
		if slices.Contains(checks, f.Check) {
			found = append(found, f)
		}
	}
	return found
}

// tableNames returns the names of the checks of every database.
func tableNames() []string {
	names := []string{"tables"}
	for _, c := range tableChecks {
		names = append(names, c.name)
	}
	return names
}

// same fails the test unless the findings are want, with all their texts.
func same(t testing.TB, when string, got []finding, want ...finding) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: found\n%s\nwant\n%s", when, textOf(got), textOf(want))
	}
}

func textOf(found []finding) string { return doctorText(doctorJSON{Findings: found}) }

// ages matches a number of seconds, which differs between runs.
var ages = regexp.MustCompile(`\b\d+s\b`)

// steady replaces the ages in the findings by "Ns".
func steady(found []finding) []finding {
	for i := range found {
		found[i].What = ages.ReplaceAllString(found[i].What, "Ns")
	}
	return found
}

func (s *shell) exec(db testkit.Database, queries ...string) {
	s.Helper()
	for _, query := range queries {
		if _, err := db.ExecContext(s.Context(), query); err != nil {
			s.Fatalf("%s: %v", query, err)
		}
	}
}

// daysAgo returns an SQL expression for a time in the past.
func daysAgo(db testkit.Database, n int) string {
	if db.Dialect == "sqlite" {
		return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) - %d * 86400000`, n)
	}
	return fmt.Sprintf(`now() - %d * interval '1 day'`, n)
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open   func(testing.TB) testkit.Database
		checks string
	}{
		"SQLite": {testkit.SQLite, ""},
		// On a shared server, the doctor may find transactions of other tests.
		"PostgreSQL": {testkit.PostgresAlone, ", rights, days, connections, transactions, replication, clocks, bloat"},
	} {
		t.Run(name, func(t *testing.T) {
			want := "Not looked at: the broker: set ONCE_AMQP_URL.\nNothing was found. Checked: tables, durability, forwarders, pauses, " +
				"refused, dead letters, quarantine, retention, consumers" + c.checks + ".\n"
			if got := newShell(t, c.open(t)).once(exitDone, "doctor"); got != want {
				t.Errorf("the doctor says\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestDoctorRefusesWrongFlags(t *testing.T) {
	t.Parallel()
	s := newShell(t, testkit.SQLite(t))
	s.env["ONCE_AMQP_URL"] = "amqp://ann:pa55word@127.0.0.1:1/"
	for flag, want := range map[string]string{
		"--role=owner":                    `--role "owner": must be one of producer, forwarder, consumer, operator, watcher`,
		"--management-url=ann:pa55word@h": `--management-url must be http:// or https://host:port (it is not shown, it may contain a password)`,
		"--amqp-url=http://ann:pa55word@h": `the broker's address (not shown, it may contain a password) must be ` +
			`amqp:// or amqps://user@host/vhost`,
	} {
		if got := s.once(exitUsage, "doctor", flag); got != "once: "+want+"\nRun 'once doctor --help' for usage.\n" {
			t.Errorf("%s: got\n%s\nwant\n%s", flag, got, want)
		}
	}
}

// If the tables cannot be used, the doctor makes no other check of the database.
func TestDoctorLooksForTheTables(t *testing.T) {
	t.Parallel()
	testkit.EachEmptyDatabase(t, func(t *testing.T, db testkit.Database) {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
		const why = "  why: The library does not start with these tables, and the other checks of the tables need them.\n"
		const ends = "\nNot looked at: the broker: set ONCE_AMQP_URL.\n1 finding. Checked: tables.\n"
		says := func(what, do string, args ...string) {
			t.Helper()
			want := "TABLES: schema: " + what + "\n" + why + "  do:  " + do + "\n" + ends
			if got := s.once(exitFound, append([]string{"doctor"}, args...)...); got != want {
				t.Errorf("the doctor says\n%s\nwant\n%s", got, want)
			}
		}
		says(`the tables are missing: no table "once_migrations": run schema.Up, or apply schema.SQL`,
			"Run: once migrate up; or check --schema and --prefix.")

		s.once(exitDone, "migrate", "up")
		if db.Dialect == "postgres" {
			says(`the table has another layout: "once_inbox" has no partitions by day: run schema.Up, or apply the end of schema.SQL`,
				"Leave out --inbox and ONCE_INBOX, or convert the inbox with once migrate up --inbox by_day.", "--inbox", "by_day")
			s.once(exitDone, "migrate", "up", "--inbox", "by_day")
			says(`the table has another layout: "once_inbox" has partitions by day: set Config.Inbox to schema.ByDay`,
				"Add --inbox by_day, or set ONCE_INBOX=by_day.")
		}

		own := schema.Version()
		s.exec(db, fmt.Sprintf(`UPDATE once_migrations SET version = %d, compatible_from = %[1]d WHERE version = %d`, own-1, own))
		says(fmt.Sprintf("the tables are older than this code: they have version %d, this code needs %d: run schema.Up, or apply "+
			"schema.SQLFrom(config, %d)", own-1, own, own-1), "Run: once migrate up.")
		s.exec(db, `UPDATE once_migrations SET version = 999, compatible_from = 999`)
		says(fmt.Sprintf("the tables are newer than this code: they have version 999, which needs code of version 999 or later, "+
			"but this code has version %d: deploy the newer code, or restore a backup from before the migration", own),
			"Install a newer release of once.")
	})
}

func TestDoctorLooksAtTheEncoding(t *testing.T) {
	t.Parallel()
	db := testkit.PostgresIn(t, "LATIN1")
	s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
	var name string
	if err := db.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	same(t, "LATIN1", object[doctorJSON](s, exitFound, "doctor").Findings, finding{
		Check: "tables",
		What: `schema: check: the database is not in UTF-8: database "` + name + `" is encoded in LATIN1: make one with CREATE DATABASE ... ` +
			`ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump and pg_restore`,
		Why: "The library does not start with these tables, and the other checks of the tables need them.",
		Do:  "Change the encoding, as the text says.",
	})
}

func TestDoctorLooksAtTheDurability(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		setting := "PRAGMA synchronous is OFF: set it to NORMAL or FULL in the data source name"
		s.env["ONCE_DSN"] = strings.Replace(db.DSN, "synchronous(NORMAL)", "synchronous(OFF)", 1)
		if db.Dialect == "postgres" {
			setting = "synchronous_commit is off: set it to on (ALTER ROLE ... SET synchronous_commit = on, or in the data source name)"
			dsn, err := url.Parse(db.DSN)
			if err != nil || dsn.Scheme == "" {
				t.Fatalf("PG_DSN must be a URL for this test: %v", err)
			}
			query := dsn.Query()
			query.Set("synchronous_commit", "off")
			dsn.RawQuery = query.Encode()
			s.env["ONCE_DSN"] = dsn.String()
		}
		same(t, "a setting that loses commits", madeBy(object[doctorJSON](s, exitFound, "doctor"), tableNames()...), finding{
			Check: "durability",
			What:  "schema: the database may lose commits in a crash: " + setting,
			Why:   "A message is acked after its commit. If a crash of the server loses the commit, the message's effect is lost.",
			Do:    "Change the setting that the text names, for the database or for the logins of the services.",
		})
	})
}

func TestDoctorLooksAtTheBroker(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	topic := broker.Name("orders")
	commit(s, db, topic, "m1")
	lacks := func(what string) finding {
		return finding{
			Check: "broker",
			What:  fmt.Sprintf("Topic %q has messages in the outbox or among the dead letters, and the broker has no %s.", topic, what),
			Why:   "The broker refuses the messages of this topic until its consumers' queue exists.",
			Do:    "Start a consumer of the topic, which declares its queue, or check --topology and --amqp-prefix.",
		}
	}
	same(t, "no exchange", madeBy(object[doctorJSON](s, exitFound, "doctor"), "broker"), lacks(fmt.Sprintf("exchange %q", topic)))
	same(t, "no queue", madeBy(object[doctorJSON](s, exitFound, "doctor", "--topology", "queue", "--amqp-prefix", "shop."), "broker"),
		lacks(fmt.Sprintf("queue %q", "shop."+topic)))

	s.env["ONCE_AMQP_URL"] = "amqp://ann:pa55word@127.0.0.1:1/"
	same(t, "no broker", madeBy(object[doctorJSON](s, exitFound, "doctor"), "broker"), finding{
		Check: "broker",
		What:  "The broker does not accept the connection: dial tcp 127.0.0.1:1: connect: connection refused",
		Why:   "Forwarders and consumers with this address cannot work.",
		Do:    "Check address, user, password and virtual host in ONCE_AMQP_URL, and whether the broker runs.",
	})
	if text := s.once(exitFound, "doctor"); strings.Contains(text, "pa55word") {
		t.Errorf("the password is in the output\n%s", text)
	}
}

func TestDoctorLooksAtTransactions(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	var pid, user, program string
	err = tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid(), current_user, current_setting('application_name')`).
		Scan(&pid, &user, &program)
	if err != nil {
		t.Fatal(err)
	}
	d := &doctor{app: &app{}, db: database{DB: db.DB}, tooOld: time.Millisecond, idleTooLong: time.Millisecond}
	want := finding{
		What: fmt.Sprintf("Session %s of user %q (program %q) has a transaction that is Ns old; the session is idle in transaction for Ns.",
			pid, user, program),
		Why: "If it has written, forwarders wait for it before they read later rows. It keeps vacuum from freeing rows, so the outbox grows.",
		Do:  "Find out what the program waits for. To end it: SELECT pg_terminate_backend(" + pid + ").",
	}
	var found []finding
	testkit.Eventually(t, time.Minute, "the idle transaction is found", func() bool {
		all, err := d.transactions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Other tests have transactions, too.
		found = slices.DeleteFunc(steady(all), func(f finding) bool { return !strings.Contains(f.Do, "pg_terminate_backend("+pid+")") })
		return len(found) > 0
	})
	same(t, "an idle transaction", found, want)
}
