package mover

import (
	"database/sql"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// Whatever is in the stock table is a message or becomes a letter that can be
// stored, with its bytes.
func FuzzUnwrap(f *testing.F) {
	f.Add([]byte(`{"destination_topic":"t","uuid":"u","payload":"YQ==","metadata":{"a":"b"}}`), "id", `{"a":"b"}`)
	f.Add([]byte(`{"destination_topic":"t","payload":"!","metadata":{"a":1}}`), "id", `null`)
	f.Add([]byte(`{"destination_topic":"\u0000","uuid":"\ud800","metadata":null}`), "", `{"a":"\u0000"}`)
	f.Add([]byte("\x00\xff"), "id", `{"a":"\ud83d"}`)
	f.Add([]byte(`[]`), "id", `["a"]`)
	m := &Mover{config: Config{}.withDefaults()}
	f.Fuzz(func(t *testing.T, payload []byte, id, metadata string) {
		if !utf8.ValidString(id) || hasNUL(id) || !utf8.ValidString(metadata) || hasNUL(metadata) || !json.Valid([]byte(metadata)) {
			return // the database has seen to that
		}
		u := unwrap(row{id: id, payload: payload, metadata: sql.NullString{String: metadata, Valid: true}})
		var l letter
		if u.msg == nil {
			if u.err == nil {
				t.Fatal("malformed, and no word on why")
			}
			l = m.asStored(u.row, reasonMalformed, u.err)
			if string(l.payload) != string(payload) {
				t.Errorf("%q became %q", payload, l.payload)
			}
		} else {
			if u.topic == "" {
				t.Error("no topic")
			}
			l = m.refused(u, sql.ErrNoRows)
		}
		var flat map[string]string
		if err := json.Unmarshal([]byte(l.metadata), &flat); err != nil || !plain(flat) {
			t.Errorf("metadata %s became %s: %v", metadata, l.metadata, err)
		}
		for _, text := range []string{l.id, l.topic, l.text, l.reason, l.metadata} {
			if !utf8.ValidString(text) || hasNUL(text) {
				t.Errorf("%q cannot be stored", text)
			}
		}
	})
}
