package main

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
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

func (s *shell) exec(db kit.Database, queries ...string) {
	s.Helper()
	for _, query := range queries {
		if _, err := db.ExecContext(s.Context(), query); err != nil {
			s.Fatalf("%s: %v", query, err)
		}
	}
}

// daysAgo returns an SQL expression for a time in the past.
func daysAgo(db kit.Database, n int) string {
	if db.Dialect == "sqlite" {
		return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) - %d * 86400000`, n)
	}
	return fmt.Sprintf(`now() - %d * interval '1 day'`, n)
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open   func(testing.TB) kit.Database
		checks string
	}{
		"SQLite": {kit.SQLite, ""},
		// On a shared server, the doctor may find transactions of other tests.
		"PostgreSQL": {
			kit.PostgresAlone,
			", schemas, row security, rights, days, connections, transactions, replication, clocks, bloat (schema \"public\")",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := "Not looked at: the broker: set ONCE_AMQP_URL.\nNothing was found. Checked: tables, durability, forwarders, pauses, " +
				"blocked keys, refused, dead letters, quarantine, retention, consumers" + c.checks + ".\n"
			if got := newShell(t, c.open(t)).once(exitDone, "doctor"); got != want {
				t.Errorf("the doctor says\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestDoctorRefusesWrongFlags(t *testing.T) {
	t.Parallel()
	s := newShell(t, kit.SQLite(t))
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
	kit.Long(t)
	t.Parallel()
	kit.EachEmptyDatabase(t, func(t *testing.T, db kit.Database) {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
		const why = "  why: The library does not start with these tables, and the other checks of the tables need them.\n"
		ends := "\nNot looked at: the broker: set ONCE_AMQP_URL.\n1 finding. Checked: tables.\n"
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
			ends = strings.Replace(ends, "tables.", `tables (schema "public").`, 1)
			says(`the table has another layout: "once_inbox" has no partitions by day: run schema.Up, or apply the end of schema.SQL`,
				"Leave out --inbox and ONCE_INBOX, or convert the inbox with once migrate up --inbox by_day.", "--inbox", "by_day")
			s.once(exitDone, "migrate", "up", "--inbox", "by_day")
			says(`the table has another layout: "once_inbox" has partitions by day: set Config.Inbox to schema.ByDay`,
				"Add --inbox by_day, or set ONCE_INBOX=by_day.")
		}

		own := schema.Version()
		s.exec(db, fmt.Sprintf(`DELETE FROM once_migrations WHERE version = %d`, own))
		says(fmt.Sprintf("the tables are older than this code: they have version %d, this code needs %d: run schema.Up, or apply "+
			"schema.SQLFrom(config, %d)", own-1, own, own-1), "Run: once migrate up.")
		s.exec(db, `UPDATE once_migrations SET version = 999, compatible_from = 999 WHERE version = 1`)
		says(fmt.Sprintf("the tables are newer than this code: they have version 999, which needs code of version 999 or later, "+
			"but this code has version %d: deploy the newer code, or restore a backup from before the migration", own),
			"Install a newer release of once.")
	})
}

func TestDoctorLooksAtTheEncoding(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.PostgresIn(t, "LATIN1")
	s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
	name := kit.One[string](t, db, `SELECT current_database()`)
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
	db, broker := kit.Postgres(t), kit.Rabbit(t)
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
	db := kit.Postgres(t)
	tx := kit.Begin(t, db)
	t.Cleanup(func() { _ = tx.Rollback() })
	var pid, user, program string
	kit.OK(t, tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid(), current_user, current_setting('application_name')`).
		Scan(&pid, &user, &program))
	d := &doctor{app: &app{}, db: database{DB: db.DB}, tooOld: time.Millisecond, idleTooLong: time.Millisecond}
	want := finding{
		What: fmt.Sprintf("Session %s of user %q (program %q) has a transaction that is Ns old; the session is idle in transaction for Ns.",
			pid, user, program),
		Why: "If it has written, forwarders wait for it before they read later rows. It keeps vacuum from freeing rows, so the outbox grows.",
		Do:  "Find out what the program waits for. To end it: SELECT pg_terminate_backend(" + pid + ").",
	}
	var found []finding
	kit.Eventually(t, time.Minute, "the idle transaction is found", func() bool {
		all, err := d.transactions(t.Context())
		kit.OK(t, err)
		// Other tests have transactions, too.
		found = slices.DeleteFunc(steady(all), func(f finding) bool { return !strings.Contains(f.Do, "pg_terminate_backend("+pid+")") })
		return len(found) > 0
	})
	same(t, "an idle transaction", found, want)
}

func TestDoctorLooksAtTheTables(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		commit(s, db, "bad", "m1", "m2")
		forwarded(s, db)
		commit(s, db, "orders", "m3")
		commit(s, db, "mails", "m4", "m5")
		later := `now() + interval '1 hour'`
		if db.Dialect == "sqlite" {
			later = `CAST(unixepoch('subsec') * 1000 AS INTEGER) + 3600000`
		}
		s.exec(db,
			`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'payments', `+daysAgo(db, 40)+`, 'x')`,
			`UPDATE once_outbox SET attempts = 1, last_error = 'NO_ROUTE', failing_since = `+daysAgo(db, 3),
			`UPDATE once_outbox SET attempts = 0, last_error = 'forbidden: 403' WHERE topic = 'orders'`,
			`DELETE FROM once_forwarders`,
			`INSERT INTO once_pauses (kind, name, actor, why, paused_at) VALUES ('topic', 'mails', 'ann', 'no server', `+daysAgo(db, 3)+`)`,
			`INSERT INTO once_pauses (kind, name, actor, why, paused_at) VALUES ('tenant', 'acme', 'bob', 'too loud', `+daysAgo(db, 2)+`)`,
			`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'young', 'ann', 'a test')`,
			`INSERT INTO once_consumer_pauses (topic, consumer, actor, why, paused_at)
			 VALUES ('t', 'mails', 'ann', 'no server', `+daysAgo(db, 3)+`)`,
			`INSERT INTO once_consumer_pauses (topic, consumer, actor, why) VALUES ('t', 'young', 'ann', 'a test')`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, error, fingerprint, last_failed_at)
				VALUES ('payments', 'orders', 'q1', '', 'x', 'quarantined', `+later+`, 'no', 'f', `+daysAgo(db, 1)+`)`,
		)
		const (
			again  = "The forwarder tries them again with growing pauses, and gives up on them in the end. Later messages of their keys wait."
			repair = "Repair what the error says. NO_ROUTE means that no queue receives the topic: declare and bind one."
			waits  = "The forwarder counts no attempts and never gives up on them, because the error concerns the whole topic. The topic waits."
			grant  = "Repair what the error says. 403 means that the forwarder's user lacks a right, or that its token has expired."
			stays  = "Its messages stay in the outbox, which grows, and nothing is sent. The lag includes them."
		)
		same(t, "findings", madeBy(object[doctorJSON](s, exitFound, "doctor"), tableNames()...),
			finding{
				Check: "forwarders",
				What:  "No forwarder runs, and 3 messages wait in the outbox.",
				Why:   "Nobody sends these messages. The outbox grows with every commit.",
				Do:    "Start a forwarder: once forward, or the service that has one. If one runs, it uses another --schema or --prefix.",
			},
			finding{
				Check: "pauses", What: `The topic "mails" has been paused for 3d, by ann: no server`,
				Why: stays, Do: "If the reason is gone: once outbox resume --topic mails",
			},
			finding{
				Check: "pauses", What: `The tenant "acme" has been paused for 2d, by bob: too loud`,
				Why: stays, Do: "If the reason is gone: once outbox resume --tenant acme",
			},
			finding{
				Check: "pauses", What: `Consumer "mails" of topic "t" has been paused for 3d, by ann: no server`,
				Why: "It handles no messages. They stay in the broker and in the table of parked messages.",
				Do:  "If the reason is gone: once consumers resume mails --topic t",
			},
			finding{
				Check: "refused", What: `2 messages of topic "mails" were refused, the first 3d ago: NO_ROUTE`, Why: again, Do: repair,
			},
			finding{
				Check: "refused", What: `1 message of topic "orders" was refused, the first 3d ago: forbidden: 403`, Why: waits, Do: grant,
			},
			finding{
				Check: "dead letters",
				What:  "The outbox has 2 dead letters.",
				Why:   "The forwarder gave up on them: no consumer gets these messages.",
				Do:    "once dead groups shows the causes. Repair them, then once dead replay or once dead discard.",
			},
			finding{
				Check: "quarantine",
				What:  "In quarantine: 1 message.",
				Why:   "Their consumers gave up on them: they have no effect until somebody replays, edits or discards them.",
				Do:    "once quarantine groups shows the causes. Repair them, then once quarantine replay, edit or discard.",
			},
			finding{
				Check: "retention",
				What:  "The inbox has ids that are 40d old; the retention is 30d.",
				Why: "If nothing removes expired ids, the inbox grows for ever. " +
					"Ids of parked and quarantined messages are kept on purpose.",
				Do: "Run a service with once.Consumer, or once sweep from cron. If a consumer remembers for longer, " +
					"tell the doctor with --retention.",
			},
		)

		for _, values := range []string{`('a', ` + later + `, 'x')`, `('b', ` + later + `, 'y')`} {
			s.exec(db, `INSERT INTO once_forwarders (owner, lease_until, destination) VALUES `+values)
		}
		same(t, "two forwarders", madeBy(object[doctorJSON](s, exitFound, "doctor", "--retention", "60d"), "forwarders", "retention"), finding{
			Check: "forwarders",
			What:  `Forwarders of one outbox have different destinations: "a" sends to "x", "b" sends to "y".`,
			Why:   "Each broker gets a part of the messages, and the order of keys is lost.",
			Do:    "Stop one of them, or give all the same broker. See docs/operating-the-forwarder.md.",
		})
	})
}

func TestDoctorLooksAtConsumersAndParkedRows(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.exec(db,
			`INSERT INTO once_consumers (topic, consumer, program, seen_at) VALUES ('orders', 'payments', 'shop', `+daysAgo(db, 3)+`)`,
			`INSERT INTO once_consumers (topic, consumer, seen_at) VALUES ('orders', 'mail', `+daysAgo(db, 0)+`)`,
			`INSERT INTO once_consumers (topic, consumer, embedded, seen_at) SELECT 'orders', 'old', NOT embedded, `+daysAgo(db, 9)+
				` FROM once_consumers WHERE consumer = 'mail'`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, finished_at)
				VALUES ('payments', 'orders', 'm', '', '', 'resolved', `+daysAgo(db, 50)+`, `+daysAgo(db, 50)+`)`,
		)
		same(t, "findings", madeBy(object[doctorJSON](s, exitFound, "doctor"), tableNames()...),
			finding{
				Check: "retention",
				What:  `Messages that were handled or discarded 50d ago are still in "once_parked"; the retention is 30d.`,
				Why:   "If nothing removes them, the table grows for ever. Messages of a replay that has not finished are kept on purpose.",
				Do:    "Run a service with once.Consumer, or once sweep from cron. Finish replays: once replays list.",
			},
			finding{
				Check: "consumers",
				What:  `Consumer "old" of topic "orders" was last seen 9d ago.`,
				Why:   "The embedded transport stores every message of the topic for it, so its rows grow for ever.",
				Do:    "Start the program. If the consumer was retired, call embedded.Transport.Forget.",
			},
			finding{
				Check: "consumers",
				What:  `Consumer "payments" of topic "orders" was last seen 3d ago (program "shop").`,
				Why:   "Its parked messages wait, and nobody handles new ones.",
				Do:    "Start the program. If the consumer was retired, nothing needs to be done.",
			},
		)
	})
}

// A login with fewer rights than the doctor needs gets a finding for each check that failed.
func TestDoctorSaysWhatItCannotCheck(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	s.env["ONCE_DSN"] = loginOf(t, db, "producer")
	cannot := func(check, what string) finding {
		return finding{
			Check: check, What: what, Why: "A problem here would not be found.",
			Do: "Run once doctor with a login that has the role watcher (docs/roles.md), or repair the cause.",
		}
	}
	same(t, "consumers", madeBy(object[doctorJSON](s, exitFound, "doctor"), "consumers"),
		cannot("consumers", "This could not be checked: pq: permission denied for table once_consumers (42501)"))

	s.exec(db, `REVOKE SELECT ON once_migrations FROM "`+roleOf(t, db, "producer")+`"`)
	unread := cannot("tables", `schema: check: read "once_migrations": pq: permission denied for table once_migrations (42501)`)
	unread.Why = "The library does not start with these tables, and the other checks of the tables need them."
	same(t, "tables", object[doctorJSON](s, exitFound, "doctor").Findings, unread)
}

// With --role, the doctor says which rights the login lacks.
func TestDoctorLooksAtTheRights(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newShell(t, db)
	s.env["ONCE_DSN"] = loginOf(t, db, "producer")
	login := strings.TrimSuffix(roleOf(t, db, "producer"), "producer") + "login"
	s.exec(db, `REVOKE ALL ON once_idempotency_keys FROM "`+roleOf(t, db, "producer")+`"`)
	same(t, "rights", madeBy(object[doctorJSON](s, exitFound, "doctor", "--role", "producer"), "rights"), finding{
		Check: "rights",
		What: `schema: the database user lacks rights: "` + login + `" needs SELECT on once_idempotency_keys, ` +
			`INSERT on once_idempotency_keys, DELETE on once_idempotency_keys, UPDATE on once_idempotency_keys: ` +
			`grant it the role of a producer, see schema.Roles and docs/roles.md`,
		Why: "A service with this login fails as soon as it needs the right.",
		Do:  "Run the SQL of once migrate roles as the owner of the tables, and make the login a member of the role producer.",
	})
}
