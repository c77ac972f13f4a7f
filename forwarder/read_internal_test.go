package forwarder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// async is a publisher that does not wait for confirms.
type async struct{ *counter }

func (async) PublishAsync(string, *message.Message, func(error)) {}

// A publisher that waits for confirms cannot have more messages in flight than there are
// goroutines that call it. So its window is the number of workers.
func TestWindowOfAPublisherThatWaitsIsItsWorkers(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	config := Config{Schema: schema.Config{Dialect: schema.SQLite}, Window: 20, Workers: 3}
	for want, publisher := range map[int]message.Publisher{3: new(counter), 20: async{new(counter)}} {
		f, err := New(db.DB, publisher, config)
		if err != nil {
			t.Fatal(err)
		}
		if f.config.Window != want || cap(f.sender.orders) != want {
			t.Errorf("%T: the window is %d, with room for %d orders, want %d", publisher, f.config.Window, cap(f.sender.orders), want)
		}
	}
}

// For each message, a read returns the tenant, the time at which the message was stored,
// and the earliest time at which it could be sent, even if it was stored long ago.
func TestReadTellsSinceWhenAMessageWaits(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s, exec := ownerOfAll(t, db)
		ago, older, due := "now() - interval '1 hour'", "now() - interval '2 hours'", "now() - interval '1 minute'"
		if db.Dialect == "sqlite" {
			ago, older, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000", "(unixepoch() - 60) * 1000"
		}
		exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES
			('old', 't', 1, 'abc', '{"once_tenant_id":"acme"}', ` + ago + `, NULL), ('due', 't', 1, '', '{}', ` + older + `, ` + due + `)`)
		found, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
			if err != nil {
				t.Fatal(err)
			}
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
	s, exec := ownerOfAll(t, testkit.EmptyPostgres(t))
	exec(`ALTER TABLE once_outbox ALTER COLUMN attempts DROP NOT NULL`)
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, attempts) VALUES ('a', 't', 1, '', '{}', NULL)`)
	found, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
	if err == nil || !strings.Contains(err.Error(), "attempts") {
		t.Errorf("got %d rows and %v, want an error about attempts", len(found.rows), err)
	}
}
