package parkedrows_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

func TestTrap50EnvelopeKeepsEveryByte(t *testing.T) {
	nasty := []string{"", "a", "\x00", "\xff\xfe", "ünïcode 🐇", strings.Repeat("x", 70_000)}
	for _, s := range nasty {
		msg := message.NewMessage(s, []byte(s))
		for _, key := range nasty {
			msg.Metadata[key] = s
		}
		got, err := parkedrows.Decode(parkedrows.Encode(msg))
		kit.OK(t, err)
		if !got.Equals(msg) {
			t.Fatalf("%.10q does not come back as it was", s)
		}
	}
}

func TestDamagedEnvelopeIsAnError(t *testing.T) {
	whole := parkedrows.Encode(message.NewMessage("id", []byte("payload")))
	for n := range whole {
		if _, err := parkedrows.Decode(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(whole))
		}
	}
	if _, err := parkedrows.Decode(append(bytes.Clone(whole), 0)); err == nil {
		t.Error("a byte too many is accepted")
	}
	if _, err := parkedrows.Decode(append([]byte{99}, whole[1:]...)); err == nil {
		t.Error("an unknown version is accepted")
	}
}

func FuzzDecode(f *testing.F) {
	msg := message.NewMessage("id", []byte("payload"))
	msg.Metadata["key"] = "value"
	f.Add(parkedrows.Encode(msg))
	f.Add([]byte{1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, envelope []byte) {
		msg, err := parkedrows.Decode(envelope)
		if err != nil {
			return
		}
		again, err := parkedrows.Decode(parkedrows.Encode(msg))
		if err != nil || !again.Equals(msg) {
			t.Fatalf("%x does not survive: %v", envelope, err)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00b\xffü", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 0 {
			return
		}
		got := parkedrows.Clean(text, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("Clean(%q, %d) is %q", text, limit, got)
		}
	})
}

func TestSnapshotIsIndependent(t *testing.T) {
	msg := message.NewMessage("id", []byte("body"))
	msg.Metadata["k"] = "v"
	snapshot := parkedrows.Snapshot(msg)
	msg.Payload[0], msg.Metadata["k"], msg.UUID = 'X', "changed", "other"
	parkedrows.Restore(msg, snapshot)
	msg.Payload[1] = 'Y'
	if string(snapshot.Payload) != "body" || msg.UUID != "id" || msg.Metadata["k"] != "v" || string(msg.Payload) != "bYdy" {
		t.Fatalf("snapshot %+v, message %+v", snapshot, msg)
	}
}

func TestDecodedMessageIsIndependentOfItsEnvelope(t *testing.T) {
	envelope := parkedrows.Encode(message.NewMessage("id", []byte("body")))
	first, err := parkedrows.Decode(envelope)
	kit.OK(t, err)
	first.Payload[0] = 'X'
	if second, err := parkedrows.Decode(envelope); err != nil || string(second.Payload) != "body" {
		t.Errorf("the payload is %q, %v", second.Payload, err)
	}
}

func TestDigestDistinguishesIDAndPayload(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range [][2]string{{"a", "bc"}, {"a", "bd"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"abd", ""}} {
		seen[string(parkedrows.Digest(message.NewMessage(m[0], []byte(m[1]))))] = true
	}
	if len(seen) != 6 {
		t.Fatalf("%d digests of 6 messages", len(seen))
	}
}

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

func parkedTables(t *testing.T) kit.Database {
	t.Helper()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
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
		id, headers, payload := decoded(t, db.DB, parkedrows.Encode(msg))
		if !id.Valid || id.String != msg.UUID || !maps.Equal(headers, msg.Metadata) || string(payload) != string(msg.Payload) || payload == nil {
			t.Errorf("%s: id %q, headers %.200v, payload %.100q", name, id.String, headers, payload)
		}
	}
	// Bytes that are not valid text are escaped, and the payload can still be read.
	id, headers, payload := decoded(t, db.DB, parkedrows.Encode(&message.Message{
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
	whole := parkedrows.Encode(&message.Message{
		UUID: "m1", Metadata: message.Metadata{"key": "value", "other": "v"},
		Payload: []byte("payload"),
	})
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
		_, err := parkedrows.Decode(envelope)
		id, headers, payload := decoded(t, db.DB, envelope)
		if id.Valid != (err == nil) || (headers != nil) != (err == nil) || (payload != nil) != (err == nil) {
			t.Errorf("%s: Decode says %v, SQL %v %v %q", name, err, id, headers, payload)
		}
	}
}

func TestViewShowsParkedMessages(t *testing.T) {
	db := parkedTables(t)
	s, err := parkedrows.NewStore(db.DB, schema.Config{})
	kit.OK(t, err)
	msg := message.NewMessage("m1", []byte(`{"order":17}`))
	msg.Metadata["once_tenant_id"] = "acme"
	kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, msg))
	kit.Exec(t, db, `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		VALUES ('c', 't', 'damaged', '', 'x', 'quarantined', now())`)
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

// odd returns different messages with unusual ids, which can all be stored.
func odd() []*message.Message {
	var all []*message.Message
	for _, id := range []string{
		"plain", `quoted "'`, `back\slash`, "{,}", "[1]", "NULL", "null", " ", "ümläut", "",
		"nul\x00", "bad\xff", strings.Repeat("x", 6400), strings.Repeat("x", 6401),
	} {
		msg := message.NewMessage(id, []byte("body \x00\xff of "+id))
		msg.Metadata.Set("key\x00\xff", id)
		all = append(all, msg)
	}
	all[0].Metadata.Set("once_tenant_id", `ten"ant`)
	all[1].Payload = nil
	return append(all, message.NewMessage("plain", []byte("another body")))
}

// Every message of a batch is stored unchanged, whatever bytes the other messages
// contain.
func TestTrap69BatchIsStoredByteForByte(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		msgs := odd()
		stored, err := s.Receive(t.Context(), batch("c", append(msgs, msgs[0].Copy())...))
		if err != nil || stored != int64(len(msgs)) {
			t.Fatalf("%d stored, %v", stored, err)
		}
		claimed := claim(t, s, selection)
		if len(claimed) != len(msgs) {
			t.Fatalf("%d rows, want %d", len(claimed), len(msgs))
		}
		for i, c := range claimed { // in the order of their arrival
			if want := msgs[i]; c.Err != nil || c.Message.UUID != want.UUID || !bytes.Equal(c.Message.Payload, want.Payload) ||
				!maps.Equal(c.Message.Metadata, want.Metadata) {
				t.Errorf("%q came back as %v, %v", want.UUID, c.Message, c.Err)
			}
		}
		entries := rows.Parked(t, s)
		if entries[0].Tenant != `ten"ant` || entries[1].Tenant != "" || !bytes.Equal(entries[0].Digest, parkedrows.Digest(msgs[0])) {
			t.Errorf("%+v", entries[0])
		}
		// All messages have rows already, except the message that has no usable id.
		if stored, err = s.Receive(t.Context(), batch("c", msgs...)); err != nil || stored != 1 {
			t.Errorf("%d stored again, %v", stored, err)
		}
		if stored, err = s.Receive(t.Context(), batch("another", msgs...)); err != nil || stored != int64(len(msgs)) {
			t.Errorf("%d stored for another consumer, %v", stored, err)
		}
	})
}

// If one claim was lost, Resolve settles the other claims.
func TestResolveSettlesEachClaimOnItsOwn(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		deliver(t, s, "lost")
		sel := selection
		sel.Lease = time.Millisecond
		old := claim(t, s, sel)[0].Claim
		sel = selection
		sel.Crashed = true
		var current []parkedrows.Claimed
		kit.Eventually(t, 30*time.Second, "the lease is over", func() bool {
			current = claim(t, s, sel)
			return len(current) == 1
		})
		deliver(t, s, "done", "kept")
		fresh := claim(t, s, selection)
		fresh[1].Keep = true
		// A later claim has the row of the old claim now. Another claim in the same call has
		// the token of that later claim.
		current[0].ID, fresh[0].Token = current[0].ID+1000, current[0].Token
		err := s.Resolve(t.Context(), old, current[0].Claim, fresh[0].Claim, fresh[1].Claim)
		if !errors.Is(err, parkedrows.ErrClaimLost) {
			t.Errorf("%v, want ErrClaimLost", err)
		}
		entries := rows.Parked(t, s)
		if len(entries) != 3 || entries[0].State != parkedrows.Waiting || entries[1].State != parkedrows.Waiting ||
			entries[2].State != parkedrows.Resolved {
			t.Fatalf("%+v", entries)
		}
		if entries[2].Crashes != 0 || entries[2].FinishedAt.IsZero() {
			t.Errorf("the resolved row is %+v", entries[2])
		}
		if !fresh[1].Settled() || fresh[1].Age() < 0 || fresh[1].Age() > time.Minute {
			t.Errorf("%+v", fresh[1].Claim)
		}
	})
}

func batch(consumer string, msgs ...*message.Message) *parkedrows.Batch {
	b := parkedrows.NewBatch("t", parkedrows.Subscription{Consumer: consumer})
	for _, msg := range msgs {
		b.Add(msg)
	}
	return b
}
