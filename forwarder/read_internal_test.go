package forwarder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// async is a publisher that does not wait for confirms.
type async struct{ *counter }

func (async) PublishAsync(string, *message.Message, func(error)) {}

// A publisher that waits for confirms cannot have more messages in flight than there are
// goroutines that call it. So its window is the number of workers.
func TestWindowOfAPublisherThatWaitsIsItsWorkers(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := Config{Schema: schema.Config{Dialect: schema.SQLite}, Window: 20, Workers: 3}
	for want, publisher := range map[int]message.Publisher{3: new(counter), 20: async{new(counter)}} {
		f, err := New(db.DB, publisher, config)
		kit.OK(t, err)
		if f.config.Window != want || cap(f.sender.orders) != want {
			t.Errorf("%T: the window is %d, with room for %d orders, want %d", publisher, f.config.Window, cap(f.sender.orders), want)
		}
	}
}

// For each message, a read returns the tenant, the time at which the message was stored,
// and the earliest time at which it could be sent, even if it was stored long ago.
func TestReadTellsSinceWhenAMessageWaits(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		ago, older, due := "now() - interval '1 hour'", "now() - interval '2 hours'", "now() - interval '1 minute'"
		if db.Dialect == "sqlite" {
			ago, older, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000", "(unixepoch() - 60) * 1000"
		}
		exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES
			('old', 't', 1, 'abc', '{"once_tenant_id":"acme"}', ` + ago + `, NULL), ('due', 't', 1, '', '{}', ` + older + `, ` + due + `)`)
		found, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
		kit.OK(t, err)
		if len(found.rows) != 2 {
			t.Fatalf("got %d rows, want 2", len(found.rows))
		}
		for _, m := range found.rows {
			if tenant := map[string]string{"old": "acme"}[m.ID]; m.Tenant != tenant {
				t.Errorf("the tenant of %s is %q, want %q", m.ID, m.Tenant, tenant)
			}
			want, age := time.Hour, time.Hour
			if m.ID == "due" {
				want, age = time.Minute, 2*time.Hour
			}
			created, ok := meta.Stamped(m.Created)
			if stored := time.Since(created); !ok || stored < age-time.Second || stored > age+30*time.Second {
				t.Errorf("%s was stored at %q, want %v ago", m.ID, m.Created, age)
			}
			if waits := time.Since(m.Since); waits < want-time.Second || waits > want+30*time.Second || m.Due != (m.ID == "due") {
				t.Errorf("%s waits for %v, want %v", m.ID, waits, want)
			}
		}
	})
}

// During a pause, a sweep and a refill return only those paused rows that later messages
// wait for. They mark these rows as paused, and leave out the contents.
func TestReadReturnsPausedRowsWithoutTheirContents(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		ago := "now() - interval '1 hour'"
		if db.Dialect == "sqlite" {
			ago = "(unixepoch() - 3600) * 1000"
		}
		exec(`INSERT INTO once_outbox (message_id, topic, slot, ordering_key, payload, metadata, attempts, due_at) VALUES
			('paused', 'mails', 1, 'k', 'abc', '{"a":"b"}', 2, NULL), ('without key', 'mails', 1, NULL, 'abc', '{"a":"b"}', 0, NULL),
			('due', 'mails', 1, 'd', 'abc', '{"a":"b"}', 2, ` + ago + `), ('sent', 'orders', 1, 'k', 'abc', '{"a":"b"}', 2, NULL)`)
		pauses := dispatch.Pauses{Topics: []string{"mails"}}
		for name, read := range map[string]*dispatch.Read{
			"sweep":  {Slots: []int64{1}, Limit: 10, Bytes: 1000, Pauses: pauses},
			"refill": {Refill: true, Keys: []string{"d", "k"}, Slots: []int64{1}, Limit: 10, Bytes: 1000, Pauses: pauses},
		} {
			found, err := s.rows(t.Context(), read)
			kit.OK(t, err)
			var got []string
			for _, m := range found.rows {
				got = append(got, fmt.Sprintf("%s %t %q %q %d", m.ID, m.Paused, m.Payload, m.Metadata, m.Attempts))
			}
			want := []string{`paused true "" "{}" 0`, `sent false "abc" "{\"a\":\"b\"}" 2`}
			for i, line := range got {
				got[i] = strings.ReplaceAll(line, `\"a\": `, `\"a\":`)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	})
}

// If a row cannot be scanned, the read fails. If the read skipped the row, nobody would
// notice that its message is never sent.
func TestReadFailsIfARowCannotBeScanned(t *testing.T) {
	t.Parallel()
	s, exec := ownerOfAll(t, kit.EmptyPostgres(t))
	exec(`ALTER TABLE once_outbox ALTER COLUMN attempts DROP NOT NULL`)
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, attempts) VALUES ('a', 't', 1, '', '{}', NULL)`)
	found, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
	if err == nil || !strings.Contains(err.Error(), "attempts") {
		t.Errorf("got %d rows and %v, want an error about attempts", len(found.rows), err)
	}
}

// After a read that returned many rows, lib/pq receives the payloads of the next read in
// binary form. pgx always receives payloads in binary form, and reads them in one round
// trip.
func TestPayloadsOfABacklogAreReadInBinaryForm(t *testing.T) {
	t.Parallel()
	eachCounted(t, func(t *testing.T, server kit.Database, s *store, trips *kit.RoundTrips) {
		kit.Exec(t, server, `
			INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, ordering_key)
			SELECT 'm' || n, 'topic', 0, '\x00ff5c'::bytea || decode(lpad(to_hex(n), 8, '0'), 'hex'), '{}', 'k'
			FROM generate_series(1, $1::int) AS n`, bulkRows)
		read := func(read dispatch.Read) found {
			t.Helper()
			read.Slots, read.Bytes = []int64{0}, 1<<20
			got, err := s.rows(t.Context(), &read)
			kit.OK(t, err)
			if got.reach.Horizon <= 0 && !read.Refill || len(got.rows) != read.Limit && !read.Lookahead {
				t.Fatalf("%d rows, %+v, want %d rows and a horizon", len(got.rows), got.reach, read.Limit)
			}
			for n, m := range got.rows {
				if want := []byte{0, 0xff, '\\', 0, 0, byte((n + 1) >> 8), byte(n + 1)}; !bytes.Equal(m.Payload, want) {
					t.Fatalf("the payload of row %d is %q, want %q", n, m.Payload, want)
				}
			}
			return got
		}
		text := s.reader.AsText()
		for n, c := range []struct {
			read dispatch.Read
			bulk bool // of the next read
		}{
			{dispatch.Read{Limit: bulkRows - 1}, false},
			{dispatch.Read{Limit: bulkRows}, text},
			{dispatch.Read{Limit: bulkRows}, text},
			{dispatch.Read{Limit: bulkRows, Refill: true, Keys: []string{"k"}}, text},
			{dispatch.Read{Limit: 1, Lookahead: true, From: bulkRows}, text}, // finds nothing, and says nothing about the next sweep
			{dispatch.Read{Limit: 1}, false},
			{dispatch.Read{Limit: 1}, false},
		} {
			inTx, before := s.bulk, trips.Load()
			read(c.read)
			if s.bulk != c.bulk {
				t.Errorf("after read %d, the next read is in a transaction: %v, want %v", n, s.bulk, c.bulk)
			}
			if got := trips.Load() - before; n > 0 && text && !c.read.Lookahead && (got > 1) != inTx {
				t.Errorf("read %d took %d round trips", n, got)
			}
		}
	})
}

// A poll after an empty sweep first checks whether there are rows. The check finds
// everything that a sweep would report: rows to send, slots without an owner, new
// pauses and blocked keys.
func TestPollFirstAsksWhetherThereAreRows(t *testing.T) {
	t.Parallel()
	eachCounted(t, func(t *testing.T, server kit.Database, s *store, trips *kit.RoundTrips) {
		exec := func(query string) {
			t.Helper()
			kit.Exec(t, server, query)
		}
		sweep := func(read dispatch.Read) found {
			t.Helper()
			read.Slots, read.Limit, read.Bytes = []int64{0}, 10, 1<<20
			got, err := s.rows(t.Context(), &read)
			kit.OK(t, err)
			return got
		}
		poll := func() found { t.Helper(); return sweep(dispatch.Read{Poll: true}) }
		insert := func(slot, values string) {
			t.Helper()
			exec(`INSERT INTO once_outbox (message_id, topic, payload, metadata, slot, due_at)
				VALUES ('m1', 'topic', '', '{}', ` + slot + `, ` + values + `)`)
		}
		empty := func(reason string) {
			t.Helper()
			if got := poll(); len(got.rows) != 0 || got.reach.Covered != dispatch.Everything || got.reach.Horizon <= 0 ||
				got.reach.Ceiling < got.reach.Horizon {
				t.Fatalf("%s: got %d rows, %+v", reason, len(got.rows), got.reach)
			}
		}
		finds := func(reason string) {
			t.Helper()
			if got := poll(); len(got.rows) != 1 || got.rows[0].ID != "m1" {
				t.Fatalf("%s: got %d rows, want the row", reason, len(got.rows))
			}
			exec(`DELETE FROM once_outbox`)
			empty("the row is deleted")
			empty("the row is deleted")
		}
		empty("the first poll")
		empty("the second poll")
		if !s.quiet {
			t.Fatal("after an empty sweep, the next poll does not ask first")
		}

		insert("0", "NULL")
		finds("a row")
		insert("0", "now() - interval '1 second'")
		finds("a row that is due")
		insert("0", "now() + interval '1 hour'")
		empty("a delayed row")
		empty("a delayed row")
		exec(`DELETE FROM once_outbox`)

		insert("1", "NULL")
		empty("a row of another slot")
		if s.quiet {
			t.Fatal("while rows of another slot wait, each poll asks first")
		}
		exec(`DELETE FROM once_outbox`)
		empty("the row is deleted")

		exec(`UPDATE once_slots SET owner = 'other', lease_until = now() + interval '1 hour'`)
		if poll().unowned {
			t.Fatal("all slots have owners, but the poll reports one without")
		}
		exec(`UPDATE once_slots SET lease_until = now() - interval '1 second' WHERE slot = 7`)
		if !poll().unowned {
			t.Fatal("the poll does not report a slot without an owner")
		}
		exec(`INSERT INTO once_pauses (kind, name, actor, why) VALUES ('topic', 'topic', 'ann', 'lunch')`)
		if got := poll().reach.Pauses; len(got.Topics) != 1 {
			t.Fatalf("the poll reports the pauses %+v, want the topic", got)
		}
		insert("0", "NULL")
		for _, pauses := range []dispatch.Pauses{{}, {Topics: []string{"topic"}}} {
			if got := sweep(dispatch.Read{State: true, Pauses: pauses}); len(got.reach.Pauses.Topics) != 1 || len(got.rows) != 0 {
				t.Fatalf("a read of the state reports the pauses %+v and %d rows, want the topic and none", got.reach.Pauses, len(got.rows))
			}
		}
		exec(`DELETE FROM once_outbox`)
		exec(`DELETE FROM once_pauses`)
		exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 7, 7, 'refused')`)
		if got := poll().reach.Horizon; got != 0 || !s.inTx {
			t.Fatalf("a key is blocked: the horizon is %d, want 0 and then a read in a transaction", got)
		}
		exec(`DELETE FROM once_blocked_keys`)
		poll()
		empty("no key is blocked")

		// After a hint there are rows, so the check would only take time.
		trips.Store(0)
		sweep(dispatch.Read{})
		if got := trips.Load(); got > 2 { // on a busy machine, pgx pings a connection that was idle for a second
			t.Fatalf("a sweep after a hint took %d round trips", got)
		}
		insert("0", "NULL")
		if got := sweep(dispatch.Read{Poll: true, Known: []int64{1 << 40}}); len(got.rows) != 1 {
			t.Fatalf("with rows in memory, got %d rows", len(got.rows))
		}
	})
}

// The number of blocks that a read touches must not grow with the backlog, with and
// without statistics about the table.
func TestTrap03_AReadCostsTheSameWithAnyBacklog(t *testing.T) {
	t.Parallel()
	db := kit.EmptyPostgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d := kit.Dialect(t, schema.Config{})
	s := newStore(db.DB, d)
	exec := func(query string, args ...any) {
		kit.Exec(t, db, query, args...)
	}
	fill := func(n int) {
		exec(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata, due_at)
			SELECT i, 'topic', CASE WHEN i % 2 = 0 THEN i % 1000 END, i % 64, 'payload', '{}',
			       CASE WHEN i % 10 = 0 THEN now() + interval '1 hour' END
			FROM generate_series(1, $1::int) AS i`, n)
	}
	slots := make([]int64, 64)
	for i := range slots {
		slots[i] = int64(i)
	}
	cost := func(from int64) (blocks int) {
		args := s.arguments(&dispatch.Read{
			From: from, Known: []int64{from + 1, from + 2}, Slots: slots, Keys: []string{"1", "2"}, Limit: 100,
		})
		for _, query := range []dialect.Statement{s.sql.read, s.sql.readWithState} {
			var text []byte
			kit.OK(t, db.QueryRowContext(t.Context(),
				`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query.Query(), args...).Scan(&text))
			var explained []struct {
				Plan struct {
					Hit  int `json:"Shared Hit Blocks"`
					Read int `json:"Shared Read Blocks"`
				} `json:"Plan"`
			}
			kit.OK(t, json.Unmarshal(text, &explained))
			blocks = max(blocks, explained[0].Plan.Hit+explained[0].Plan.Read)
		}
		return blocks
	}

	fill(1000)
	exec(`ANALYZE once_outbox`)
	few := cost(0)
	if few <= 0 {
		t.Fatalf("few is %d, want more than 0", few)
	}
	const more = 40 // because the indexes are deeper; a read of all would be thousands
	rows := kit.Sized(30_000, 100_000)
	fill(rows)
	middle := int64(rows / 2)
	if got := cost(0); got > few+more {
		t.Fatalf("cost(0) is %d, want at most %d: from the start", got, few+more)
	}
	if got := cost(middle); got > few+more {
		t.Fatalf("cost(%d) is %d, want at most %d: in the middle", middle, got, few+more)
	}
	exec(`ANALYZE once_outbox`)
	if got := cost(0); got > few+more {
		t.Fatalf("cost(0) is %d, want at most %d: from the start, analyzed", got, few+more)
	}
	if got := cost(middle); got > few+more {
		t.Fatalf("cost(%d) is %d, want at most %d: in the middle, analyzed", middle, got, few+more)
	}
}
