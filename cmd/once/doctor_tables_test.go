package main

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestDoctorLooksAtTheTables(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
			`DELETE FROM once_forwarders`,
			`INSERT INTO once_pauses (kind, name, actor, why, paused_at) VALUES ('topic', 'mails', 'ann', 'no server', `+daysAgo(db, 3)+`)`,
			`INSERT INTO once_pauses (kind, name, actor, why, paused_at) VALUES ('tenant', 'acme', 'bob', 'too loud', `+daysAgo(db, 2)+`)`,
			`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'young', 'ann', 'a test')`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, error, fingerprint, last_failed_at)
				VALUES ('payments', 'orders', 'q1', '', 'x', 'quarantined', `+later+`, 'no', 'f', `+daysAgo(db, 1)+`)`,
		)
		const (
			again  = "The forwarder tries them again with growing pauses, and gives up on them in the end. Later messages of their keys wait."
			repair = "Repair what the error says. NO_ROUTE means that no queue receives the topic: declare and bind one."
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
				Check: "refused", What: `2 messages of topic "mails" were refused, the first 3d ago: NO_ROUTE`, Why: again, Do: repair,
			},
			finding{
				Check: "refused", What: `1 message of topic "orders" was refused, the first 3d ago: NO_ROUTE`, Why: again, Do: repair,
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
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	t.Parallel()
	db := testkit.Postgres(t)
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
	db := testkit.Postgres(t)
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
