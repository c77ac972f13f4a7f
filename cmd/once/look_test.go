package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/status"
	"github.com/watermill-once/once/schema"
)

func TestAudit(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "audit"), "No act matches.")
		commit(s, db, "bad", "m1", "m2")
		forwarded(s, db)
		s.once(exitDone, "dead", "discard", "1", "--why", "a test", "--actor", "bob")
		s.once(exitDone, "dead", "replay", "2", "--why", "repaired")
		all := object[auditJSON](s, exitDone, "audit")
		if len(all.Records) != 2 || all.Records[0].Action != "replay" || all.Records[1].Actor != "bob" || all.Records[1].Why != "a test" {
			t.Fatalf("audit %+v", all)
		}
		one := object[auditJSON](s, exitDone, "audit", "--by", "bob", "--since", "1h")
		if len(one.Records) != 1 || one.Records[0].Subject != "dead:1" {
			t.Errorf("audit %+v", one)
		}
		s.says(s.once(exitDone, "audit", "--limit", "1"), "ACTOR", "repaired", "There may be more: add --before 2")
		s.says(s.once(exitDone, "audit", "--before", "2"), "bob", "discard", "dead:1", "a test")
		s.says(s.once(exitDone, "audit", "--action", "stop"), "No act matches.")
	})
}

func TestVersions(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		s.says(s.once(exitDone, "versions", "list"), "No aggregate matches.")
		s.says(s.once(exitDone, "versions", "waiting"), "No message waits for a missing version.")
		now := `now()`
		if db.Dialect == "sqlite" {
			now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
		}
		for _, query := range []string{
			`INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			 VALUES ('payments', 'order', '7', 3, 1, ` + now + `)`,
			`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, early_since, early_of, early_version)
			 VALUES ('payments', 'orders', 'm5', '', '', 'waiting', ` + now + `, ` + now + `, '5:order7', 5)`,
		} {
			kit.Exec(t, db, query)
		}
		list := object[versionsJSON](s, exitDone, "versions", "list", "--consumer", "payments")
		if len(list.Versions) != 1 || list.Versions[0].Version != 3 || list.More {
			t.Errorf("versions %+v", list)
		}
		s.says(s.once(exitDone, "versions", "list", "--limit", "1"), "COMPLETE FROM", "order", "raise --limit")
		held := object[waitingListJSON](s, exitDone, "versions", "waiting", "--aggregate-type", "order", "--aggregate-id", "7")
		if len(held.Messages) != 1 || held.Messages[0].Version != 5 || held.Messages[0].Last != 3 || !held.Messages[0].Known {
			t.Errorf("waiting %+v", held)
		}
		s.says(s.once(exitDone, "versions", "waiting"), "LAST APPLIED", "m5")
		s.says(s.once(exitUsage, "versions", "waiting", "--aggregate-id", "7"), "give both or none")
	})
}

// The commands list and count search the whole table, even with several conditions. The
// command groups says that it has searched only a part of the table.
func TestSearchesWithSeveralConditionsGoOnToTheEnd(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		now := `now()`
		if db.Dialect == "sqlite" {
			now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
		}
		// Only the first and the last row have both the tenant and the event type.
		last := strconv.Itoa(kit.Sized(25_000, 50_000))
		numbers := `WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < ` + last + `) `
		labels := `CASE WHEN i % 2 = 0 OR i = 1 THEN 'acme' ELSE '' END, CASE WHEN i % 2 = 1 OR i = ` + last + ` THEN 'placed' ELSE '' END`
		rare := `CASE WHEN i = 1 OR i = ` + last + ` THEN 'rare' ELSE 'usual' END`
		for _, query := range []string{
			numbers + `INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason,
					fingerprint, unknown, tenant, event_type)
				SELECT i, 'm' || i, 't', '', '{}', ` + now + `, 1, ` + rare + `, 'exhausted', ` + rare + `, 1 = 0, ` + labels + ` FROM numbers`,
			numbers + `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, reason, fingerprint, tenant,
					event_type)
				SELECT 'c', 't', 'm' || i, '', '', 'quarantined', ` + now + `, 'failed', ` + rare + `, ` + labels + ` FROM numbers`,
		} {
			kit.Exec(t, db, query)
		}
		for _, of := range []string{"dead", "quarantine"} {
			filter := []string{"--tenant", "acme", "--event-type", "placed"}
			call := func(command string, more ...string) []string {
				return append(append([]string{of, command}, filter...), more...)
			}
			s.says(s.once(exitDone, call("list")...), "m1 ", "m"+last)
			s.says(s.once(exitDone, call("list", "--limit", "1")...), "m1 ", "There may be more: add --after 1\n")
			s.says(s.once(exitDone, call("list", "--after", "1", "--limit", "1")...), "m"+last)
			if n := object[countJSON](s, exitDone, call("count")...); n.Count != 2 {
				t.Errorf("%s: counted %d", of, n.Count)
			}
			s.says(s.once(exitDone, call("groups")...), "1+", "rare", "Only the latest messages were searched")
			none := append(call("groups"), "--topic", "t", "--reason", map[string]string{"dead": "exhausted", "quarantine": "failed"}[of])
			if groups := object[groupsJSON](s, exitDone, none...); !groups.Partial || len(groups.Groups) != 1 {
				t.Errorf("%s: groups %+v", of, groups)
			}
		}
		if list := object[lettersJSON](s, exitDone, "dead", "list", "--tenant", "acme", "--event-type", "placed"); list.Next != 0 {
			t.Errorf("there may be more letters behind %d", list.Next)
		}
	})
}

func TestStatus(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		commit(s, db, "orders", "m1", "m2")
		s.says(s.once(exitDone, "status"), "outbox      2 messages wait, one has been due for",
			"0 instances run; nobody sends the messages of 64 slots",
			"dead        0 dead letters", "parked      0 messages are tried again later", "quarantine  0 messages")
		out := object[statusJSON](s, exitDone, "status")
		if out.Outbox.Pending != (atMostJSON{N: 2}) || out.FreeSlots != 64 || out.Tables != schema.Version() {
			t.Errorf("status %+v", out)
		}
		s.says(s.once(exitUsage, "status", "--every", "1s"), "--every needs --watch")
	})
}

// "once status --watch" writes one state after the other, and Ctrl-C ends it with exit
// code 0.
func TestStatusWatch(t *testing.T) {
	s := newShell(t, kit.SQLite(t))
	for _, c := range []struct {
		width int
		json  bool
		mark  string // at the beginning of each state
	}{{0, false, " UTC\noutbox "}, {80, false, "\x1b[H\x1b[2J"}, {0, true, fmt.Sprintf(`"tables":%d`, schema.Version())}} {
		ctx, interrupt := context.WithCancel(t.Context())
		var stdout, stderr kit.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, width: c.width}
		a.env = func(name string) string { return s.env[name] }
		args := []string{"status", "--watch", "--every", "10ms"}
		if c.json {
			args = append(args, "--json")
		}
		ended := make(chan int, 1)
		go func() { ended <- a.run(ctx, args) }()
		kit.Eventually(t, time.Minute, "three states", func() bool { return strings.Count(stdout.String(), c.mark) >= 3 })
		interrupt()
		if code := <-ended; code != exitDone || stderr.String() != "" {
			t.Errorf("exit code %d\n%s", code, stderr.String())
		}
		for line := range strings.Lines(stdout.String()) {
			if c.json && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
	}
}

func TestCountsAboveTheBound(t *testing.T) {
	for want, c := range map[string]status.Count{
		"1 row":                {N: 1},
		"10000 rows":           {N: 10_000},
		"more than 10000 rows": {N: 10_000, More: true},
		"about 9900000 rows":   {N: 10_000, More: true, About: 9_900_000},
	} {
		if got := atMost(c, "row", "rows"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// traceRows inserts a message with a row in each table, at fixed times, and two
// messages that it caused.
func traceRows(s *shell, db kit.Database) {
	s.Helper()
	in := func(year, second int) string {
		moment := time.Date(year, 5, 1, 12, 0, second, 0, time.UTC)
		if db.Dialect == "sqlite" {
			return fmt.Sprint(moment.UnixMilli())
		}
		return "'" + moment.Format(time.RFC3339) + "'"
	}
	at := func(second int) string { return in(2026, second) }
	metadata := `'{"once_tenant_id":"acme","once_aggregate_type":"order","once_aggregate_id":"4711","once_causation_id":"m1"}'`
	if db.Dialect == "postgres" {
		s.exec(db, `SELECT setval('once_outbox_position', 3)`)
	}
	for _, statement := range []string{
		`INSERT INTO once_consumers (topic, consumer) VALUES ('orders', 'mail')`,
		`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at, tenant, aggregate_type, aggregate_id,
			event_type) VALUES (1, 'm1', 'orders', '', '{}', ` + at(1) + `, ` + at(2) + `, 'acme', 'order', '4711', 'OrderPlaced')`,
		`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, died_at, attempts, last_error, reason, unknown,
			causation_id) VALUES (2, 'm2', 'invoices', '', '{}', ` + at(3) + `, ` + at(9) + `, 20, 'no queue', 'exhausted', (1 = 0), 'm1')`,
		`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata, created_at, due_at)
			VALUES (3, 'm3', 'mails', 0, '', ` + metadata + `, ` + at(4) + `, ` + in(2126, 5) + `)`,
		`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('m1', 'billing', ` + at(3) + `, '')`,
		`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, created_at, first_failed_at, last_failed_at,
			attempts, reason, error) VALUES ('payments', 'orders', 'm1', '', '', 'quarantined', ` + at(5) + `, ` + at(5) + `, ` + at(5) + `, ` +
			at(8) + `, 12, 'exhausted', 'card refused by the bank')`,
		`INSERT INTO once_audit (at, actor, action, subject, consumer, message_id, why)
			VALUES (` + at(7) + `, 'ann', 'replay', 'parked:1', 'payments', 'm1', 'the bank is back')`,
	} {
		kit.Exec(s, db, statement)
	}
}

func TestTrace(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		traceRows(s, db)
		golden(t, "trace.txt", s.once(exitDone, "trace", "m1"))
		golden(t, "trace_causes.txt", s.once(exitDone, "trace", "m1", "--causes"))
		golden(t, "trace.json", s.once(exitDone, "trace", "m1", "--causes", "--json"))
		golden(t, "trace_unknown.txt", s.once(exitDone, "trace", "nobody"))
		golden(t, "trace_aggregate.txt", s.once(exitDone, "trace", "--aggregate", "order/4711", "--limit", "1"))
		got := object[traceJSON](s, exitDone, "trace", "--tenant", "acme")
		if len(got.Messages) != 2 || len(got.Notes) != 1 {
			t.Errorf("trace of a tenant: %+v", got)
		}
		if text := s.once(exitDone, "trace", "--tenant", "other"); !regexp.MustCompile(`^No message matches\.\n`).MatchString(text) {
			t.Error(text)
		}
	})
}
