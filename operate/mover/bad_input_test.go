package mover

import (
	"database/sql"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// Every row of the table of Watermill's own forwarder becomes either a message, or a
// dead letter. The dead letter contains the bytes of the row, in a form that the
// database can store.
func FuzzUnwrap(f *testing.F) {
	f.Add([]byte(`{"destination_topic":"t","uuid":"u","payload":"YQ==","metadata":{"a":"b"}}`), "id", `{"a":"b"}`)
	f.Add([]byte(`{"destination_topic":"t","payload":"!","metadata":{"a":1}}`), "id", `null`)
	f.Add([]byte(`{"destination_topic":"\u0000","uuid":"\ud800","metadata":null}`), "", `{"a":"\u0000"}`)
	f.Add([]byte("\x00\xff"), "id", `{"a":"\ud83d"}`)
	f.Add([]byte(`[]`), "id", `["a"]`)
	m := &Mover{config: Config{}.withDefaults()}
	f.Fuzz(func(t *testing.T, payload []byte, id, metadata string) {
		if !utf8.ValidString(id) || hasNUL(id) || !utf8.ValidString(metadata) || hasNUL(metadata) || !json.Valid([]byte(metadata)) {
			return // the stock table cannot contain such rows
		}
		u := unwrap(row{id: id, payload: payload, metadata: sql.NullString{String: metadata, Valid: true}})
		var d deadLetter
		if u.msg == nil {
			if u.err == nil {
				t.Fatal("malformed without an error")
			}
			d = m.asStored(u.row, reasonMalformed, u.err)
			if string(d.payload) != string(payload) {
				t.Errorf("%q became %q", payload, d.payload)
			}
		} else {
			if u.topic == "" {
				t.Error("no topic")
			}
			d = m.refused(u, sql.ErrNoRows)
		}
		var flat map[string]string
		if err := json.Unmarshal([]byte(d.metadata), &flat); err != nil || !withoutNUL(flat) {
			t.Errorf("metadata %s became %s: %v", metadata, d.metadata, err)
		}
		for _, text := range []string{d.id, d.topic, d.text, d.reason, d.metadata} {
			if !utf8.ValidString(text) || hasNUL(text) {
				t.Errorf("%q cannot be stored", text)
			}
		}
	})
}
