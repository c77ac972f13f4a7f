package main

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// journeyRows inserts a message with a row in each table, at fixed times, and two
// messages that it caused.
func journeyRows(s *shell, db testkit.Database) {
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
		if _, err := db.ExecContext(s.Context(), statement); err != nil {
			s.Fatal(err)
		}
	}
}

func TestTrace(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		journeyRows(s, db)
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
