package poison_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

func newCopyBench(t *testing.T, db testkit.Database) *bench {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, MaxPayload: 100})
	if err != nil {
		t.Fatal(err)
	}
	return newBench(t, db, func(c *poison.Config) { c.CopyTo, c.Outbox = "quarantine", box.Publisher })
}

func TestCopyIsPublishedInTheSameTransaction(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newCopyBench(t, db)
		msg := message.NewMessage("", []byte("body"))
		msg.Metadata = message.Metadata{
			"kept": "k", "BCC": "elsewhere", "bad\xff": "x", "nul": "\x00", "long": strings.Repeat("x", 5000),
			"once_ordering_key": "key", "once_due_at": "soon",
		}
		if err := b.handle("payments", msg, failing(errors.New("no stock\x00"))); err != nil {
			t.Fatal(err)
		}
		var id, topic, metadata, payload string
		err := db.QueryRowContext(t.Context(), `SELECT message_id, topic, CAST(metadata AS text), payload FROM once_outbox`).
			Scan(&id, &topic, &metadata, &payload)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(metadata), &got); err != nil {
			t.Fatal(err)
		}
		if id == "" || topic != "quarantine" || payload != "body" || len(got) != 7 || got["kept"] != "k" ||
			got[poison.CopyConsumer] != "payments" || got[poison.CopyReason] != poison.ReasonFailed || got[poison.CopyTopic] != "orders.placed" ||
			got[poison.CopyEntry] != "1" || got[poison.CopyError] != "no stock\uFFFD" || got[poison.CopyMessageID] != "" {
			t.Errorf("the copy is %q to %q: %q, %q", id, topic, payload, got)
		}

		// If the entry cannot be stored, no copy is published.
		if _, err := db.ExecContext(t.Context(), `ALTER TABLE once_parked RENAME TO elsewhere`); err != nil {
			t.Fatal(err)
		}
		if err := b.handle("payments", message.NewMessage("m2", nil), failing(errHandler)); err == nil {
			t.Error("acked and not stored")
		}
		if n := b.number(`SELECT COUNT(*) FROM once_outbox`); n != 1 {
			t.Errorf("%d copies", n)
		}
	})
}

// The message is quarantined if the outbox or the database refuses the copy.
func TestTrap43RefusedCopyDoesNotPreventTheEntry(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newCopyBench(t, db)
		if err := b.handle("payments", message.NewMessage("large", make([]byte, 101)), failing(errHandler)); err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `DROP TABLE once_outbox`); err != nil {
			t.Fatal(err)
		}
		if err := b.handle("payments", message.NewMessage("m2", nil), failing(errHandler)); err != nil {
			t.Fatal(err)
		}
		if got := b.list(); len(got) != 2 {
			t.Fatalf("in quarantine are %q", names(got))
		}
	})
}
