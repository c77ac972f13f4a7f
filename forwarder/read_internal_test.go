package forwarder

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// async is a publisher that does not wait for confirms.
type async struct{ *counter }

func (async) PublishAsync(string, *message.Message, func(error)) {}

// A publisher that waits has no more messages in flight than goroutines that call it.
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

// The time at which a message was first to be sent is that of its row, also if it was
// stored long ago.
func TestReadTellsSinceWhenAMessageWaits(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s, exec := ownerOfAll(t, db)
		ago, due := "now() - interval '1 hour'", "now() - interval '1 minute'"
		if db.Dialect == "sqlite" {
			ago, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 60) * 1000"
		}
		exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES
			('old', 't', 1, 'abc', '{}', ` + ago + `, NULL), ('due', 't', 1, '', '{}', ` + ago + `, ` + due + `)`)
		found, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(found.rows) != 2 {
			t.Fatalf("got %d rows, want 2", len(found.rows))
		}
		for _, m := range found.rows {
			want := time.Hour
			if m.ID == "due" {
				want = time.Minute
			}
			if waits := time.Since(m.Since); waits < want-time.Second || waits > want+30*time.Second || m.Due != (m.ID == "due") {
				t.Errorf("%s waits for %v, want %v", m.ID, waits, want)
			}
		}
	})
}
