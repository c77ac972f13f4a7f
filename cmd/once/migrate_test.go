package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	kit.EachEmptyDatabase(t, func(t *testing.T, db kit.Database) {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
		s.says(s.once(exitFailed, "dead", "list"), "the tables are missing", "once migrate up")
		missing := object[tablesJSON](s, exitFound, "migrate", "check")
		if missing.OK || !strings.Contains(missing.Problem, "once migrate up") {
			t.Errorf("check %+v", missing)
		}
		for range 2 {
			if up := object[tablesJSON](s, exitDone, "migrate", "up"); !up.OK || up.Version != 3 {
				t.Errorf("up %+v", up)
			}
		}
		where := map[string]string{"postgres": ` in schema "public"`}[db.Dialect]
		s.says(s.once(exitDone, "migrate", "check"), "The tables"+where+" work with version 3.")
		s.says(s.once(exitFound, "migrate", "check", "--prefix", "other_"), "other_migrations")

		// The text is for another migration tool.
		text := object[sqlJSON](s, exitDone, "migrate", "sql", "--dialect", db.Dialect, "--prefix", "other_").SQL
		kit.Exec(t, db, text)
		s.once(exitDone, "migrate", "check", "--prefix", "other_")

		// Goose sends everything between these lines as one statement.
		goose := s.once(exitDone, "migrate", "sql", "--goose", "--dialect", db.Dialect, "--prefix", "goose_")
		text, begins := strings.CutPrefix(goose, "-- +goose Up\n-- +goose StatementBegin\n")
		text, ends := strings.CutSuffix(text, "\n-- +goose StatementEnd\n")
		if !begins || !ends || strings.Contains(text, "+goose") {
			t.Errorf("migrate sql --goose writes\n%s", goose)
		}
		kit.Exec(t, db, text)
		s.once(exitDone, "migrate", "check", "--prefix", "goose_")
	})
}

func TestMigrateRoles(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	text := s.once(exitDone, "migrate", "roles", "--role-prefix", "cmd_test_")
	s.says(text, "cmd_test_operator", "cmd_test_watcher")
}

// "once migrate up" creates a missing SQLite file. No other command does.
func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	dsn := "sqlite:" + t.TempDir() + "/a ?b.db"
	s := &shell{T: t, env: map[string]string{"ONCE_DSN": dsn}}
	s.says(s.once(exitFailed, "status"), "unable to open database file")
	s.once(exitDone, "migrate", "up")
	s.says(s.once(exitDone, "status"), "0 messages wait")
}

// The SQL of all migrations ends with the statements that partition the inbox and the
// sent log by day. The SQL of later migrations must not contain these statements.
func TestMigrateSQLHasTheLayouts(t *testing.T) {
	s := &shell{T: t, env: map[string]string{"ONCE_INBOX": "by_day"}}
	s.says(s.once(exitDone, "migrate", "sql", "--sent", "by_day"), "-- The inbox by day", "-- The sent log by day")
	if text := s.once(exitDone, "migrate", "sql", "--from", "1"); strings.Contains(text, "by day") {
		t.Errorf("migrations after version 1: %s", text)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	s := newShell(t, db)
	const old = `CAST(unixepoch('subsec') * 1000 AS INTEGER) - 40 * 86400000`
	_, err := db.ExecContext(t.Context(),
		`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'payments', `+old+`, 'x')`)
	kit.OK(t, err)
	if out := object[sweepJSON](s, exitDone, "sweep", "--retention", "60d"); out.Removed != 0 {
		t.Errorf("sweep %+v", out)
	}
	if out := object[sweepJSON](s, exitDone, "sweep"); out.Removed != 1 {
		t.Errorf("sweep %+v", out)
	}
	s.says(s.once(exitUsage, "sweep", "--retention", "1h"), "MaxDuplicateAge")
}

func TestMoverSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newShell(t, kit.Postgres(t))
	s.says(s.once(exitFailed, "mover", "--once"), `no such table: "watermill_forwarder_topic"`)
	s = newShell(t, kit.SQLite(t))
	s.says(s.once(exitUsage, "mover", "--once"), "PostgreSQL only")
}

// roleOf returns the name of a role that loginOf creates.
func roleOf(t *testing.T, db kit.Database, role string) (name string) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT current_database() || '_' || $1::text`, role).Scan(&name))
	return name
}

// loginOf creates the roles, and returns the address of a user with only one of them.
func loginOf(t *testing.T, db kit.Database, role string) string {
	t.Helper()
	prefix := kit.One[string](t, db, `SELECT current_database() || '_'`)
	text, err := schema.Roles(schema.Config{}, prefix)
	kit.OK(t, err)
	user := prefix + "login"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		for _, name := range append([]string{user}, strings.Fields(strings.ReplaceAll(" "+strings.Join(parts, " "), " ", " "+prefix))...) {
			if _, err := db.ExecContext(ctx, fmt.Sprintf(`DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s`, name)); err != nil {
				t.Errorf("role %s is left: %v", name, err)
			}
		}
	})
	for _, query := range []string{text, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'of a test' IN ROLE %s`, user, prefix+role)} {
		kit.Exec(t, db, query)
	}
	address, err := url.Parse(db.DSN)
	if err != nil || address.Scheme == "" {
		t.Fatalf("PG_DSN must be a URL for this test: %v", err)
	}
	address.User = url.UserPassword(user, "of a test")
	return address.String()
}

// filled returns a shell and a database with a message in each table.
func filled(t *testing.T) (*shell, kit.Database) {
	t.Helper()
	db := kit.Postgres(t)
	s := newShell(t, db)
	commit(s, db, "bad", "d1", "d2")
	commit(s, db, "orders", "s1", "s2")
	forwarded(s, db)
	commit(s, db, "orders", "m1", "m2")
	stuck(s, db, "m2")
	kit.Exec(t, db, `
		INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, error, fingerprint, last_failed_at)
		VALUES ('payments', 'orders', 'q1', '', 'x', 'quarantined', now(), 'secret', 'f', now())`)
	return s, db
}

// A user with the role of a watcher can look at everything except contents.
func TestWatcherLooks(t *testing.T) {
	s, db := filled(t)
	s.env["ONCE_DSN"] = loginOf(t, db, "watcher")
	for _, command := range []string{
		"status", "outbox list", "outbox topics", "outbox count", "outbox blocked", "dead list", "dead count", "sent list",
		"quarantine list", "quarantine groups", "quarantine count", "replays list", "versions list", "versions waiting", "audit",
		"parked list", "parked count", "consumers list", "archive handled " + t.TempDir(),
	} {
		text := s.once(exitDone, strings.Fields(command)...)
		s.says(text, "lists leave out sizes, metadata and error texts")
		if strings.Contains(text, "NO_ROUTE") || strings.Contains(text, "secret") {
			t.Errorf("once %s shows the text of an error\n%s", command, text)
		}
	}
	s.says(s.once(exitDone, "quarantine", "list"), "q1", "payments")
	s.says(s.once(exitDone, "outbox", "list"), "m2", "backing off")
	s.says(s.once(exitDone, "outbox", "paused"), "Nothing is paused.")
	s.says(s.once(exitFailed, "outbox", "pause", "--topic", "orders", "--why", "w"), "permission denied")
	s.says(s.once(exitFailed, "dead", "show", "1"), "permission denied")
	s.says(s.once(exitFailed, "dead", "discard", "1", "--why", "w"), "permission denied")
	out := object[doctorJSON](s, exitFound, "doctor")
	for _, f := range out.Findings {
		if strings.Contains(f.What, "could not be checked") {
			t.Errorf("finding %+v", f)
		}
	}
	same(t, "without the text of the error", steady(madeBy(out, "refused")), finding{
		Check: "refused",
		What:  `1 message of topic "orders" was refused, the first Ns ago: the user may not read the error`,
		Why:   "The forwarder tries them again with growing pauses, and gives up on them in the end. Later messages of their keys wait.",
		Do:    "Repair what the error says. NO_ROUTE means that no queue receives the topic: declare and bind one.",
	})
}

// A user with the role of an operator can do everything that changes messages.
func TestOperatorActs(t *testing.T) {
	s, db := filled(t)
	s.env["ONCE_DSN"] = loginOf(t, db, "operator")
	for _, command := range []string{
		"outbox list", "outbox show 6", "outbox retry 6", "outbox retry --topic orders --yes", "outbox cancel 5 --force --why w",
		"outbox pause --topic later --why w", "outbox paused", "outbox resume --topic later",
		"dead groups", "dead list", "dead show 1", "dead replay 1", "dead discard 2 --why w", "dead export",
		"sent list", "sent show 1", "sent replay 1", "archive sent " + t.TempDir(), "archive handled " + t.TempDir(),
		"consumers pause payments --why w", "consumers list", "consumers resume payments",
		"quarantine groups", "quarantine list", "quarantine show 1", "quarantine discard 1 --why w", "replays list", "audit", "status",
	} {
		if text := s.once(exitDone, strings.Fields(command)...); strings.Contains(text, "leave out") {
			t.Errorf("once %s: %s", command, text)
		}
	}
}

// An operator can also change the messages of a running consumer.
func TestOperatorActsOnTheMessagesOfAConsumer(t *testing.T) {
	db := kit.Postgres(t)
	s := newShell(t, db)
	consumer := startPayments(s, db)
	consumer.publish(s, "-5", "m1", "m2", "m3", "m4")
	s.quarantined(4)
	waits := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			kit.Exec(t, db, `
				INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
				VALUES ('refunds', 'orders.refunded', $1, '', '', 'waiting', now() + interval '1 hour')`, id)
		}
	}
	waits("p1", "p2", "p3")
	ids := map[string]string{}
	for _, e := range object[entriesJSON](s, exitDone, "quarantine", "list").Entries {
		ids[e.MessageID] = fmt.Sprint(e.ID)
	}
	for _, m := range object[parkedListJSON](s, exitDone, "parked", "list", "--consumer", "refunds").Messages {
		ids[m.MessageID] = fmt.Sprint(m.ID)
	}
	s.env["ONCE_DSN"] = loginOf(t, db, "operator")
	for _, command := range []string{
		"trace m1", "consumers list", "parked list", "parked count", "parked show p1", "parked run p1", "parked cancel p2 --why w",
		"parked discard p3 --why w", "quarantine show m1", "quarantine edit m1 --set by=ann --why w",
		"quarantine export --file " + t.TempDir() + "/f",
		"quarantine discard m2 --why w", "quarantine replay m3", "replays list", "versions list", "reconcile ledger",
	} {
		args := strings.Fields(command)
		for i := range args {
			if id, ok := ids[args[i]]; ok && args[0] != "trace" {
				args[i] = id
			}
		}
		s.once(exitDone, args...)
	}
	s.says(s.once(exitFound, "quarantine", "replay", "--message-id", "m4", "--yes"), "1 failed again")
	s.says(s.once(exitFailed, "replays", "stop", "1"), "the replay has finished")

	waits("p4")
	s.says(s.once(exitFailed, "consumers", "remove", "payments", "orders.placed", "--why", "w"), "is running")
}
