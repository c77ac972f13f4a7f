package trace_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/trace"
	"github.com/watermill-once/once/schema"
)

// A database can contain only the tables of the producer, or only the tables of the
// consumers. Find reads the tables that exist, and notes the missing ones.
func TestTraceSaysWhichTablesAreMissing(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.publish("orders", msg("m1", "7", ""))
		b.waits("mail", msg("m1", "7", ""))
		if !b.SQLite() {
			b.Exec(`DROP VIEW once_parked_messages`)
		}
		for _, table := range []string{"parked", "inbox", "consumers", "audit"} {
			b.Exec(`DROP TABLE once_` + table)
		}
		for _, q := range []trace.Query{{MessageID: "m1"}, {AggregateID: "7"}, {Tenant: "acme"}, {MessageID: "m1", Causes: true}} {
			answer := b.find(q)
			if len(answer.Messages) != 1 {
				b.Fatalf("%d messages, want 1: %+v", len(answer.Messages), answer.Messages)
			}
			if got, want := lines(answer.Messages[0]), []string{"outbox written"}; !slices.Equal(got, want) {
				b.Fatalf("lines(answer.Messages[0]) are %q, want %q", got, want)
			}
			want := "This database has no table once_parked: it does not know what waits for a consumer or is in quarantine."
			if !slices.Contains(answer.Notes, want) {
				b.Fatalf("answer.Notes are %q, without %q", answer.Notes, want)
			}
			if want := "This database has no table once_inbox: it does not know what was handled."; !slices.Contains(answer.Notes, want) {
				b.Fatalf("answer.Notes are %q, without %q", answer.Notes, want)
			}
		}
		for _, table := range []string{"outbox", "outbox_dead", "outbox_sent", "blocked_keys"} {
			b.Exec(`DROP TABLE once_` + table)
		}
		answer := b.find(trace.Query{MessageID: "m1"})
		if len(answer.Messages[0].Events) != 0 {
			b.Fatalf("answer.Messages[0].Events are %+v, want none", answer.Messages[0].Events)
		}
		if len(answer.Notes) != 8 {
			b.Fatalf("%d notes, want 8: %q", len(answer.Notes), answer.Notes)
		}
	})
}

func TestTraceLooksAtABoundedPartOfTheOutbox(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		rows := `SELECT i, 'm' || i, 'orders', 0, '', '{"once_aggregate_id":"7"}' FROM generate_series(1, 40001) AS i`
		if b.SQLite() {
			rows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40001)
				SELECT i, 'm' || i, 'orders', 0, '', '{"once_aggregate_id":"7"}' FROM n`
		}
		b.Exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) ` + rows)
		const note = "Only the oldest 20000 rows of the outbox were looked at. Raise the number of rows to look at the others."

		near := b.find(trace.Query{MessageID: "m20000", OutboxRows: 1})
		if len(near.Messages[0].Events) != 1 {
			b.Fatalf("%d events, want 1: %+v", len(near.Messages[0].Events), near.Messages[0].Events)
		}
		if want := []string{note}; !slices.Equal(near.Notes, want) {
			b.Fatalf("near.Notes are %q, want %q", near.Notes, want)
		}
		far := b.find(trace.Query{MessageID: "m20001", OutboxRows: 20_000})
		if len(far.Messages[0].Events) != 0 {
			b.Fatalf("far.Messages[0].Events are %+v, want none", far.Messages[0].Events)
		}
		if want := []string{note}; !slices.Equal(far.Notes, want) {
			b.Fatalf("far.Notes are %q, want %q", far.Notes, want)
		}
		all := b.find(trace.Query{MessageID: "m40001"})
		if len(all.Messages[0].Events) != 1 {
			b.Fatalf("%d events, want 1: %+v", len(all.Messages[0].Events), all.Messages[0].Events)
		}
		if len(all.Notes) != 0 {
			b.Fatalf("all.Notes are %q, want none", all.Notes)
		}
		latest := b.find(trace.Query{AggregateID: "7", Limit: 2})
		if len(latest.Messages) != 2 {
			b.Fatalf("%d messages, want 2: %+v", len(latest.Messages), latest.Messages)
		}
	})
}

// Find reads a bounded number of rows of each table. This is true if the planner has
// new statistics, and also if it has statistics from the time when the tables were
// empty.
func TestTraceReadsABoundedNumberOfRows(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
	b := newBench(t, db)
	for _, table := range []string{"once_outbox_dead", "once_outbox_sent", "once_parked"} {
		b.Exec(`ALTER TABLE ` + table + ` SET (autovacuum_enabled = false)`)
		b.Exec(`ANALYZE ` + table)
	}
	// Half of the messages are about one aggregate, and one message caused a third of them;
	// the oldest one of each kind is rare.
	const labels = `'m' || i, CASE i WHEN 1 THEN 'rare' ELSE 'usual' END, 'order',
		CASE WHEN i = 1 THEN 'rare' WHEN i % 2 = 0 THEN 'hot' ELSE 'a' || i END,
		CASE WHEN i % 3 = 1 THEN 'popular' WHEN i > 1 THEN 'm' || i / 2 ELSE '' END`
	b.Exec(`INSERT INTO once_outbox_dead (message_id, tenant, aggregate_type, aggregate_id, causation_id, position, topic, payload, metadata,
			created_at, attempts, last_error, reason, unknown)
		SELECT ` + labels + `, i, 't', '', '{}', now(), 20, '', 'exhausted', false FROM generate_series(1, 60000) AS i`)
	b.Exec(`INSERT INTO once_outbox_sent (message_id, tenant, aggregate_type, aggregate_id, causation_id, position, topic, payload, metadata,
			created_at)
		SELECT ` + labels + `, i, 't', '', '{}', now() FROM generate_series(1, 60000) AS i`)
	for _, state := range []string{"quarantined", "waiting"} {
		b.Exec(`INSERT INTO once_parked (message_id, tenant, aggregate_type, aggregate_id, causation_id, consumer, topic, digest, envelope, state,
				due_at)
			SELECT ` + labels + `, '` + state + `', 't', '', '', '` + state + `', now() FROM generate_series(1, 30000) AS i`)
	}
	for _, known := range []string{"when they were empty", "now"} {
		for _, of := range []struct {
			query              trace.Query
			messages           int
			dead, sent, parked int // rows that are read, at most
		}{
			{trace.Query{MessageID: "m7"}, 1, 100, 100, 100},
			{trace.Query{MessageID: "m30000", Causes: true}, 2, 200, 200, 31_000},
			{trace.Query{MessageID: "popular", Causes: true}, 100, 12_000, 12_000, 43_000},
			{trace.Query{AggregateID: "rare"}, 1, 100, 100, 31_000},
			{trace.Query{AggregateID: "hot"}, 100, 1000, 57_000, 67_000},
			{trace.Query{AggregateID: "none"}, 0, 100, 100, 31_000},
			{trace.Query{Tenant: "rare"}, 1, 100, 51_000, 22_000},
			{trace.Query{Tenant: "usual"}, 100, 1000, 52_000, 22_000},
			{trace.Query{Tenant: "none"}, 0, 100, 51_000, 22_000},
		} {
			var before []int
			read := func() (rows []int) {
				for _, table := range []string{"once_outbox_dead", "once_outbox_sent", "once_parked"} {
					rows = append(rows, kit.RowsRead(t, db, table))
				}
				return rows
			}
			before = read()
			if answer := b.find(of.query); len(answer.Messages) != of.messages {
				t.Errorf("the tables were looked at %s: %d messages for %+v, want %d", known, len(answer.Messages), of.query, of.messages)
			}
			for i, n := range read() {
				if most := []int{of.dead, of.sent, of.parked}[i]; n-before[i] > most {
					t.Errorf("the tables were looked at %s: %d rows of table %d for %+v, want at most %d", known, n-before[i], i, of.query, most)
				}
			}
		}
		b.Exec(`ANALYZE once_outbox_dead, once_outbox_sent, once_parked`)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	if _, err := trace.New(nil, schema.Config{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Fatalf(`New: got %v, want an error with "db is nil"`, err)
	}
	eachDatabase(t, func(b *bench) {
		for want, q := range map[string]trace.Query{
			"0 of MessageID, AggregateID and Tenant are set": {},
			"2 of MessageID, AggregateID and Tenant are set": {MessageID: "m", Tenant: "t"},
			"AggregateType is set without AggregateID":       {MessageID: "m", AggregateType: "order"},
			"Limit is -1":                   {MessageID: "m", Limit: -1},
			"OutboxRows is -1":              {MessageID: "m", OutboxRows: -1},
			`MessageID is "m\x00": no text`: {MessageID: "m\x00"},
		} {
			_, err := b.finder.Find(b.Context(), q)
			if err == nil || !strings.Contains(err.Error(), "trace: find: ") {
				b.Fatalf(`got %v, want an error with "trace: find: "`, err)
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				b.Fatalf("got %v, want an error with %q", err, want)
			}
		}
		b.Exec(`DROP TABLE once_inbox`)
		b.Exec(`CREATE TABLE once_inbox (other text)`)
		_, err := b.finder.Find(b.Context(), trace.Query{MessageID: "m"})
		if err == nil || !strings.Contains(err.Error(), "trace: find: ") {
			b.Fatalf(`got %v, want an error with "trace: find: "`, err)
		}
	})
}
