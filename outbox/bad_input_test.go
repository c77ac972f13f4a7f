package outbox

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// A message that the outbox accepts is stored and read back byte for byte.
func FuzzAcceptedMessagesAreStoredUnchanged(f *testing.F) {
	f.Add("id", "topic", "key", "value", "", "", []byte("payload"))
	f.Add("a\x00", "t", "k\xff", "", "ordered", "", []byte{0, 0xff})
	f.Add("id", "topic", "", "", "", "2026-01-02T03:04:05+23:59", []byte(nil))
	f.Add("id", "topic", "once_topic", "elsewhere", "", "9999-12-31T23:59:59-23:59", []byte{})
	f.Add("🜚", "a/b", `"{},'\`, "\u2028<>&", "日本", "", []byte("\xed\xa0\x80"))
	db := kit.SQLite(f).DB
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(f, schema.Up(f.Context(), db, config))
	box, err := New(Config{Schema: config})
	kit.OK(f, err)
	f.Fuzz(func(t *testing.T, id, topic, key, value, order, due string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata[key] = value
		if order != "" {
			SetOrderingKey(msg, order)
		}
		if due != "" {
			msg.Metadata[DueAt] = due
		}
		tx := kit.Begin(t, db)
		defer func() { _ = tx.Rollback() }()
		records, refused := box.check(topic, []*message.Message{msg}, &call{})
		if published := box.Publisher(tx).Publish(topic, msg); (published == nil) != (refused == nil) {
			t.Fatalf("checked: %v, published: %v", refused, published)
		}
		if refused != nil {
			return
		}
		if _, offset := records[0].due.Zone(); offset != 0 {
			t.Errorf("due at %v: PostgreSQL takes offsets of less than 16 hours", records[0].due)
		}
		var got struct {
			id, topic, metadata string
			payload             []byte
			slot                int
		}
		kit.OK(t, tx.QueryRowContext(t.Context(), `SELECT message_id, topic, metadata, payload, slot FROM once_outbox`).
			Scan(&got.id, &got.topic, &got.metadata, &got.payload, &got.slot))
		if got.id != id || got.topic != topic || string(got.payload) != string(payload) || got.metadata != records[0].metadata ||
			got.slot != outboxrow.SlotOf(id, msg.Metadata[OrderingKey]) {
			t.Errorf("%+v was made of %q %q %q", got, id, topic, payload)
		}
		if !utf8.ValidString(got.metadata) || len(id) > maxName || len(topic) > maxName || id == "" || topic == "" {
			t.Errorf("%+v was accepted", got)
		}
	})
}

// A due time with a large offset is stored. PostgreSQL does not accept an offset of
// nearly a day, and its error would end the transaction, so Publish converts the time
// first.
func TestDueTimesWithLargeOffsets(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, text := range []string{
		"2026-01-02T03:04:05+23:59", "2026-01-02T03:04:05-23:59", "9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00Z",
	} {
		t.Run(text, func(t *testing.T) {
			db := kit.Postgres(t).DB
			kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
			tx := kit.Begin(t, db)
			defer func() { _ = tx.Rollback() }()
			msg := message.NewMessage("id", nil)
			msg.Metadata[DueAt] = text
			kit.Check(t, Publisher(tx).Publish("topic", msg))
			at, _ := time.Parse(time.RFC3339Nano, text)
			due := kit.One[*time.Time](t, tx, `SELECT due_at FROM once_outbox`)
			if at.After(time.Now()) != (due != nil) || due != nil && !due.Equal(at) {
				t.Errorf("due at %v", due)
			}
		})
	}
}

// Metadata is stored as encoding/json writes it.
func TestMetadataIsEncodedAsByEncodingJSON(t *testing.T) {
	all := message.Metadata{"": "", "b": "two", "a": "one", "日本": "\u2028", "invalid": "\xff"}
	for c := range rune(256) {
		all["key"+string(c)] = "value" + string(c) + "."
	}
	for _, metadata := range []message.Metadata{nil, {}, {"a": "b"}, all} {
		want, _ := json.Marshal(metadata)
		if len(metadata) == 0 {
			want = []byte("{}")
		}
		if got := encode(metadata); got != string(want) {
			t.Errorf("encoded as %s\nwant %s", got, want)
		}
	}
}
