package quarantine

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/schema"
)

// FuzzImport imports one line between two good lines. The line must either be refused
// with an error that contains its line number, or be stored with the bytes of its
// envelope.
func FuzzImport(f *testing.F) {
	db := kit.SQLite(f).DB
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(f, schema.Up(f.Context(), db, config))
	store, err := New(db, operate.Config{Schema: config})
	kit.OK(f, err)
	for id, payload := range map[string]string{"good": "payload", "": "\x00\xff"} {
		msg := message.NewMessage(id, []byte(payload))
		delivery := &parkedrows.Delivery{Consumer: "worker", Topic: "topic"}
		failure := parkedrows.Failure{Err: errors.New("no"), Reason: chain.ReasonPermanent, Attempts: 1}
		kit.OK(f, kit.Err(store.table.parked.Quarantine(f.Context(), delivery, msg, failure, nil)))
	}
	var exported bytes.Buffer
	kit.OK(f, kit.Err(store.Export(f.Context(), operate.Filter{}, &exported)))
	lines := strings.Split(strings.TrimSpace(exported.String()), "\n")
	good := lines[0]
	for _, line := range lines {
		f.Add(line)
		f.Add(line[:len(line)/2])
		for old, replaced := range map[string]string{
			`"version":1`: `"version":2`, `"attempts":1`: `"attempts":-1`, `"crashes":0`: `"crashes":99999999999`,
			`"consumer":"worker"`: `"consumer":"\u0000"`, `"envelope":"AQ`: `"envelope":"Ag`, `"origin":"`: `"origin":"x`,
			`"digest":"`: `"digest":"0`, `"created_at":"2`: `"created_at":"9`, `"topic":"topic"`: `"topic":null`,
		} {
			f.Add(strings.Replace(line, old, replaced, 1))
		}
	}
	f.Add(`{"version":1,"origin":"1/2","reason":"r","digest":"00","created_at":"2026-01-01T00:00:00Z","envelope":null}`)
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n") || strings.TrimSpace(line) == "" {
			return
		}
		kit.Exec(t, db, `DELETE FROM once_parked`)
		imported, known, err := store.Import(t.Context(), operate.Act{Actor: "test", Why: "to see"}, strings.NewReader(good+"\n"+line+"\n"))
		if err != nil {
			if !strings.Contains(err.Error(), "line 2") {
				t.Errorf("the error does not name the line: %v", err)
			}
			return
		}
		entry, err := readLine([]byte(line))
		kit.OK(t, err)
		page, err := store.List(t.Context(), operate.Filter{})
		if err != nil || len(page.Rows) != imported {
			t.Fatalf("%d of %d, %v", len(page.Rows), imported, err)
		}
		found := known > 0
		for _, e := range page.Rows {
			found = found || bytes.Equal(e.Envelope, entry.Envelope) && bytes.Equal(e.Digest, entry.Digest)
		}
		if !found {
			t.Errorf("%q is not there byte for byte", line)
		}
		if _, err := store.Export(t.Context(), operate.Filter{}, new(bytes.Buffer)); err != nil {
			t.Errorf("it cannot be exported: %v", err)
		}
	})
}
