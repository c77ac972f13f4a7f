package mover_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/rabbit"
)

// raw inserts a row into the table of Watermill's own forwarder. The row contains no
// envelope.
func (s stock) raw(t *testing.T, id string, payload, metadata any) {
	t.Helper()
	exec(t, s.db, `INSERT INTO watermill_forwarder_topic (uuid, payload, metadata, transaction_id)
		VALUES ($1, $2::text::json, $3::text::json, pg_current_xact_id())`, id, payload, metadata)
}

type deadLetter struct{ id, topic, payload, metadata, reason, text string }

func deadLetters(t *testing.T, db *sql.DB) []deadLetter {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `
		SELECT message_id, topic, payload, metadata::jsonb, reason, last_error FROM once_outbox_dead
		WHERE attempts = 0 AND ordering_key IS NULL AND unknown = (reason = 'invalid') ORDER BY position`)
	kit.OK(t, err)
	defer rows.Close()
	var all []deadLetter
	for rows.Next() {
		var d deadLetter
		kit.OK(t, rows.Scan(&d.id, &d.topic, &d.payload, &d.metadata, &d.reason, &d.text))
		all = append(all, d)
	}
	kit.OK(t, rows.Err())
	return all
}

// Trap 22. A row whose id or topic does not fit into an index blocks nothing.
func TestTrap22_IDThatNoIndexCanStoreBlocksNothing(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	random := make([]byte, 2000)
	_, _ = rand.Read(random) // it cannot be compressed
	long := hex.EncodeToString(random)
	s.put(t, "t", message.NewMessage(long, nil), message.NewMessage("good1", nil))
	s.put(t, long, message.NewMessage("m", nil))
	s.put(t, "t", message.NewMessage("good2", nil))
	moves(t, newMover(t, db, mover.Config{}), 4)
	if got, want := outboxIDs(t, db), []string{"good1", "good2"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
	if dead := deadLetters(t, db); len(dead) != 2 || len(dead[0].id) > 255 || !strings.Contains(dead[0].payload, long) {
		t.Errorf("dead letters: %+v", dead)
	}
}

// Trap 22. A malformed first row becomes a dead letter, and the rows behind it are
// moved. Watermill's own forwarder would nack the malformed row forever, and send no
// other row.
func TestTrap22_MalformedFirstRowBlocksNothing(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	with := func(id, key, value string) *message.Message {
		msg := message.NewMessage(id, []byte("\x00body"))
		msg.Metadata = message.Metadata{key: value}
		return msg
	}
	long := strings.Repeat("x", 300)
	s.raw(t, "no object", `[ "a" ,  1.0 ]`, `{"tenant": "a"}`)
	s.put(t, "t", message.NewMessage("good1", nil))
	s.raw(t, "no topic", `{"uuid": "inner"}`, nil)
	s.raw(t, "no payload", nil, `{"a": {"b": 1}}`)
	s.raw(t, "bad metadata", `1`, `{"nul": "\u0000"}`)
	s.raw(t, "half", `"\ud800"`, `{"half": "\ud800"}`)
	// Columns outside of the envelope are ignored.
	s.raw(t, "outside", `{"destination_topic": "t", "uuid": "good2", "payload": "AA=="}`, `{"a": ["\u0000"]}`)
	s.put(t, "t", message.NewMessage("good3", nil), message.NewMessage(long, nil), with("steers", "x-delay", "5"),
		message.NewMessage("good4", nil), message.NewMessage("", []byte("no id")), with("nul", "key", "a\x00b"),
		message.NewMessage("nul\x00", nil))
	s.put(t, "u", message.NewMessage("good5", nil))

	moves(t, newMover(t, db, mover.Config{Check: rabbit.Check}), 15)
	if got, want := outboxIDs(t, db), []string{"good1", "good2", "good3", "good4", "good5"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}

	dead := deadLetters(t, db)
	if len(dead) != 10 {
		t.Fatalf("len(dead) is %d, want 10: %+v", len(dead), dead)
	}
	why := func(d deadLetter, reason, text string) deadLetter {
		t.Helper()
		if d.reason != reason {
			t.Fatalf("d.reason is %q, want %q: %+v", d.reason, reason, d)
		}
		if !strings.Contains(d.text, text) {
			t.Fatalf("%q does not contain %q", d.text, text)
		}
		d.reason, d.text = "", ""
		return d
	}
	const topic = "forwarder_topic"
	want := deadLetter{id: "no object", topic: topic, payload: `[ "a" ,  1.0 ]`, metadata: `{"tenant": "a"}`}
	if got := why(dead[0], "malformed", "cannot unmarshal array"); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	want = deadLetter{id: "no topic", topic: topic, payload: `{"uuid": "inner"}`, metadata: `{}`}
	if got := why(dead[1], "malformed", "no destination topic"); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	want = deadLetter{id: "no payload", topic: topic, metadata: `{"metadata": "{\"a\": {\"b\": 1}}"}`}
	if got := why(dead[2], "malformed", "unexpected end"); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	want = deadLetter{id: "bad metadata", topic: topic, payload: `1`, metadata: `{"metadata": "{\"nul\": \"\\u0000\"}"}`}
	if got := why(dead[3], "malformed", "cannot unmarshal number"); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	want = deadLetter{id: "half", topic: topic, payload: `"\ud800"`, metadata: `{"metadata": "{\"half\": \"\\ud800\"}"}`}
	if got := why(dead[4], "malformed", "cannot unmarshal string"); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	if got, want := why(dead[5], "invalid", "has 300 bytes"), (deadLetter{id: long, topic: "t", metadata: `{}`}); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	want = deadLetter{id: "steers", topic: "t", payload: "\x00body", metadata: `{"x-delay": "5"}`}
	if got := why(dead[6], "invalid", `metadata "x-delay" would control RabbitMQ`); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}
	if got, want := why(dead[7], "invalid", "id is empty"), (deadLetter{topic: "t", payload: "no id", metadata: `{}`}); got != want {
		t.Fatalf("why is %+v, want %+v", got, want)
	}

	// Text columns cannot store these messages, so their dead letters contain the
	// envelopes.
	for i, text := range []string{`metadata "key" contains a NUL`, "id contains a NUL"} {
		d := why(dead[8+i], "invalid", text)
		if d.topic != topic {
			t.Fatalf("d.topic is %q, want %q", d.topic, topic)
		}
		var envelope struct {
			UUID     string            `json:"uuid"`
			Metadata map[string]string `json:"metadata"`
		}
		kit.OK(t, json.Unmarshal([]byte(d.payload), &envelope))
		if want := []string{"nul", "nul\x00"}[i]; envelope.UUID != want {
			t.Fatalf("envelope.UUID is %q, want %q", envelope.UUID, want)
		}
		if want := []string{"a\x00b", ""}[i]; envelope.Metadata["key"] != want {
			t.Fatalf(`envelope.Metadata["key"] is %q, want %q`, envelope.Metadata["key"], want)
		}
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM watermill_forwarder_topic WHERE uuid = $1`, d.id)
	}
}

func TestLongTopicBecomesDeadLetter(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	s.put(t, strings.Repeat("x", 300), message.NewMessage("id", nil))
	moves(t, newMover(t, db, mover.Config{}), 1)
	if got := deadLetters(t, db); len(got) != 1 {
		t.Fatalf("%d dead letters, want 1: %+v", len(got), got)
	}
	if got := deadLetters(t, db)[0].id; got != "id" {
		t.Fatalf(`deadLetters(t, db)[0].id is %q, want "id"`, got)
	}
}

func TestTooLargePayloadBecomesDeadLetter(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	s.put(t, "t", message.NewMessage("small", []byte("12345")), message.NewMessage("large", []byte("123456")))
	moves(t, newMover(t, db, mover.Config{MaxPayload: 5}), 2)
	if got, want := outboxIDs(t, db), []string{"small"}; !slices.Equal(got, want) {
		t.Fatalf("outboxIDs are %q, want %q", got, want)
	}
	if got := deadLetters(t, db)[0].text; !strings.Contains(got, "payload has 6 bytes") {
		t.Fatalf(`%q does not contain "payload has 6 bytes"`, got)
	}
}

// The mover continues when a stuck forwarder of Watermill releases its lock. With a
// malformed first row, this forwarder holds the lock until its wait for the ack times
// out, or until it is stopped.
func TestMoverContinuesIfStockForwarderIsStuck(t *testing.T) {
	db := kit.PostgresAlone(t).DB
	s := withDefaults(t, db)
	s.raw(t, "bad", `1`, `{}`)
	s.put(t, "t", message.NewMessage("good", nil))
	stop := s.forward(t, &inbox{})
	eventually(t, "the stock forwarder holds the lock", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) == 1
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	m := newMover(t, db, mover.Config{})
	go func() { ended <- m.Run(ctx) }()
	stop()
	eventually(t, "the mover continues", func() bool { return len(outboxIDs(t, db)) == 1 })
	cancel()
	kit.OK(t, <-ended)
	if got := deadLetters(t, db); len(got) != 1 {
		t.Fatalf("%d dead letters, want 1: %+v", len(got), got)
	}
}
