package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// found returns the findings of a check.
func found(all doctorJSON, check string) (texts []string) {
	for _, f := range all.Findings {
		if f.Check == check && f.What != "" && f.Why != "" && f.Do != "" {
			texts = append(texts, f.What+" "+f.Do)
		}
	}
	return texts
}

// has fails the test unless a finding of the check has the text.
func (s *shell) has(all doctorJSON, check, text string) {
	s.Helper()
	if !slices.ContainsFunc(found(all, check), func(finding string) bool { return strings.Contains(finding, text) }) {
		s.Errorf("no finding of %q says %q: %+v", check, text, all.Findings)
	}
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		out := s.run(t.Context(), "doctor", "--json")
		if out.code != exitDone && !strings.Contains(out.stdout, `"transactions"`) { // others use the server, too
			t.Errorf("exit code %d\n%s%s", out.code, out.stdout, out.stderr)
		}
	})
}

func TestDoctorFindsMissingTables(t *testing.T) {
	t.Parallel()
	testkit.EachEmptyDatabase(t, func(t *testing.T, db testkit.Database) {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
		s.has(object[doctorJSON](s, exitFound, "doctor"), "tables", "once migrate up")
	})
}

func TestDoctorLooksAtTheTables(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		commit(s, db, "bad", "m1", "m2")
		forwarded(s, db)
		commit(s, db, "orders", "m3")
		long := `now() - interval '40 days'`
		failing, destination := `now() - interval '1 hour'`, `now() + interval '1 hour'`
		if db.Dialect == "sqlite" {
			now := `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
			long, failing, destination = now+` - 40 * 86400000`, now+` - 3600000`, now+` + 3600000`
		}
		exec := func(query string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		exec(`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'payments', ` + long + `, 'x')`)
		exec(`UPDATE once_outbox SET attempts = 1, last_error = 'NO_ROUTE', failing_since = ` + failing)
		exec(`DELETE FROM once_forwarders`)
		exec(`INSERT INTO once_pauses (kind, name, actor, why, paused_at) VALUES ('topic', 'mails', 'ann', 'no server', ` + failing + `)`)
		exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('tenant', 'acme', 'ann', 'too loud')`)
		out := object[doctorJSON](s, exitFound, "doctor")
		s.has(out, "forwarders", "No forwarder runs, and 1 message waits")
		s.has(out, "refused", "topic \"orders\", the first 1h0m ago: NO_ROUTE")
		s.has(out, "dead letters", "2 dead letters")
		s.has(out, "pauses", "topic \"mails\" has been paused for 1h0m, by ann: no server")
		if n := len(found(out, "pauses")); n != 1 {
			t.Errorf("%d pauses, but one is young", n)
		}
		s.has(out, "retention", "40d old; the retention is 30d")
		s.says(s.once(exitFound, "doctor"), "RETENTION: ", "  why: ", "  do:  ")

		for _, values := range []string{`('a', ` + destination + `, 'x')`, `('b', ` + destination + `, 'y')`} {
			exec(`INSERT INTO once_forwarders (owner, lease_until, destination) VALUES ` + values)
		}
		s.has(object[doctorJSON](s, exitFound, "doctor", "--retention", "60d"), "forwarders", "different destinations")
	})
}

func TestDoctorLooksAtPostgres(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newShell(t, db)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	var pid string
	if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	d := &doctor{app: &app{}, db: database{DB: db.DB}, tooOld: time.Millisecond, idleTooLong: time.Millisecond}
	testkit.Eventually(t, time.Minute, "the idle transaction is found", func() bool {
		findings, err := d.transactions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(findings, func(f finding) bool { return strings.Contains(f.Do, "pg_terminate_backend("+pid+")") })
	})
	s.once(exitDone, "migrate", "check")
}

func TestDoctorLooksAtTheBroker(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Postgres(t), testkit.Rabbit(t)
	s := newShell(t, db)
	s.env["ONCE_AMQP_URL"] = broker.URL
	commit(s, db, broker.Name("orders"), "m1")
	s.has(object[doctorJSON](s, exitFound, "doctor"), "broker", "the broker has no exchange")
	s.has(object[doctorJSON](s, exitFound, "doctor", "--topology", "queue"), "broker", "the broker has no queue")
	s.env["ONCE_AMQP_URL"] = "amqp://ann:pa55word@127.0.0.1:1/"
	text := s.once(exitFound, "doctor")
	s.says(text, "The broker does not accept the connection")
	if strings.Contains(text, "pa55word") {
		t.Errorf("the password is in the output\n%s", text)
	}
}
