package parked_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// decoded decodes an envelope with the SQL function once_decode_envelope.
func decoded(t *testing.T, db *sql.DB, envelope []byte) (id sql.NullString, headers map[string]string, payload []byte) {
	t.Helper()
	var text []byte
	err := db.QueryRowContext(t.Context(), `SELECT envelope_id, headers, payload FROM once_decode_envelope($1)`, envelope).
		Scan(&id, &text, &payload)
	if err == nil && text != nil {
		err = json.Unmarshal(text, &headers)
	}
	if err != nil {
		t.Fatalf("%x: %v", envelope, err)
	}
	return id, headers, payload
}

func parkedTables(t *testing.T) testkit.Database {
	t.Helper()
	db := testkit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestSQLReadsEveryEnvelope(t *testing.T) {
	db := parkedTables(t)
	many := message.Metadata{}
	for i := range 200 {
		many[fmt.Sprint("key", i)] = strings.Repeat("v", i)
	}
	for name, msg := range map[string]*message.Message{
		"empty":          message.NewMessage("", nil),
		"plain":          {UUID: "m1", Metadata: message.Metadata{"a": "1", "b": ""}, Payload: []byte(`{"x":1}`)},
		"text":           {UUID: "grüße", Metadata: message.Metadata{`it's "ü" \`: "日本\n"}, Payload: []byte("日本")},
		"binary payload": {UUID: "m2", Payload: []byte{0, 255, 1, 128}},
		"long": {
			UUID: strings.Repeat("i", 300), Metadata: message.Metadata{strings.Repeat("k", 200): strings.Repeat("v", 20_000)},
			Payload: make([]byte, 300_000),
		},
		"127, 128 and 129": {UUID: strings.Repeat("i", 127), Metadata: message.Metadata{strings.Repeat("k", 128): strings.Repeat("v", 129)}},
		"many headers":     {UUID: "m3", Metadata: many},
	} {
		id, headers, payload := decoded(t, db.DB, parked.Encode(msg))
		if !id.Valid || id.String != msg.UUID || !maps.Equal(headers, msg.Metadata) || string(payload) != string(msg.Payload) || payload == nil {
			t.Errorf("%s: id %q, headers %.200v, payload %.100q", name, id.String, headers, payload)
		}
	}
	// Bytes that are not valid text are escaped, and the payload can still be read.
	id, headers, payload := decoded(t, db.DB, parked.Encode(&message.Message{
		UUID: "a\x00b", Metadata: message.Metadata{"k\xff": "v\xfe\\"}, Payload: []byte("body"),
	}))
	if id.String != `a\000b` || !maps.Equal(headers, map[string]string{`k\377`: `v\376\\`}) || string(payload) != "body" {
		t.Errorf("id %q, headers %v, payload %q", id.String, headers, payload)
	}
}

// The SQL function refuses the same damaged envelopes as Decode. It then returns NULL,
// and the query does not fail.
func TestSQLReadsDamagedEnvelopesAsNull(t *testing.T) {
	db := parkedTables(t)
	whole := parked.Encode(&message.Message{UUID: "m1", Metadata: message.Metadata{"key": "value", "other": "v"}, Payload: []byte("payload")})
	damaged := map[string][]byte{
		"nothing": {}, "another version": append([]byte{2}, whole[1:]...), "more": append(append([]byte{}, whole...), 0),
		"a huge length": {1, 255, 255, 255, 255, 127}, "a length without end": {1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1},
		"a huge count": {1, 0, 255, 255, 255, 255, 7},
	}
	for i := range whole {
		damaged[fmt.Sprint("cut at ", i)] = whole[:i]
		for _, value := range []byte{0, 1, 127, 128, 255} {
			changed := append([]byte{}, whole...)
			changed[i] = value
			damaged[fmt.Sprintf("byte %d is %d", i, value)] = changed
		}
	}
	for name, envelope := range damaged {
		_, err := parked.Decode(envelope)
		id, headers, payload := decoded(t, db.DB, envelope)
		if id.Valid != (err == nil) || (headers != nil) != (err == nil) || (payload != nil) != (err == nil) {
			t.Errorf("%s: Decode says %v, SQL %v %v %q", name, err, id, headers, payload)
		}
	}
}

func TestViewShowsParkedMessages(t *testing.T) {
	db := parkedTables(t)
	s, err := parked.NewStore(db.DB, schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	msg := message.NewMessage("m1", []byte(`{"order":17}`))
	msg.Metadata["once_tenant_id"] = "acme"
	if err := s.Deliver(t.Context(), "t", []string{"c"}, msg); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		VALUES ('c', 't', 'damaged', '', 'x', 'quarantined', now())`); err != nil {
		t.Fatal(err)
	}
	var order, tenant string
	err = db.QueryRowContext(t.Context(), `SELECT convert_from(payload, 'UTF8')::json ->> 'order', headers ->> 'once_tenant_id'
		FROM once_parked_messages WHERE envelope_id = 'm1' AND consumer = 'c'`).Scan(&order, &tenant)
	if err != nil || order != "17" || tenant != "acme" {
		t.Error(order, tenant, err)
	}
	var n int
	err = db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked_messages WHERE payload IS NULL`).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("%d damaged rows: %v", n, err)
	}
}
