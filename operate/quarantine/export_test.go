package quarantine_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// told returns a text for each entry. It contains the fields that an import must not
// change.
func told(entries []quarantine.Entry) (all []string) {
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%q %q %q %q %s %q %q %s %q %d %d %d %d %d %d %x %x", e.Consumer, e.Topic, e.MessageID, e.Tenant, e.Reason,
			e.Error, e.ErrorType, e.Fingerprint, e.Stack, e.Attempts, e.Crashes, e.Replays, e.CreatedAt.UnixMilli(), e.FirstFailedAt.UnixMilli(),
			e.LastFailedAt.UnixMilli(), e.Envelope, e.Digest))
	}
	return all
}

// An export can be imported byte for byte into the same database or into a database of
// the other kind. A repeated import changes nothing.
func TestTrap50ExportIsImportedByteForByte(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		nasty := "\x00\xff\xfe<\u2028>" + strings.Repeat("ü", 400)
		for _, id := range []string{"m1", "", "", nasty, "\xff"} {
			msg := message.NewMessage(id, []byte(nasty))
			msg.Metadata = message.Metadata{nasty: nasty, "once_tenant_id": "acme"}
			kit.OK(t, b.handle("payments", msg, failing(fmt.Errorf("%s: %w", nasty, errHandler))))
		}
		b.quarantinePanic("payments", "panicked")
		b.fill("inventory", 119) // more than one transaction
		original := b.list2()
		var file bytes.Buffer
		n, err := b.store.Export(t.Context(), operate.Filter{}, &file)
		if err != nil || n != 125 || strings.Count(file.String(), "\n") != n {
			t.Fatalf("%d exported, %v", n, err)
		}
		var first map[string]any
		if err := json.Unmarshal(file.Bytes()[:bytes.IndexByte(file.Bytes(), '\n')], &first); err != nil || first["consumer"] != "payments" ||
			first["message_id"] != "m1" || first["reason"] != "failed" {
			t.Fatalf("%v, the first line is %v", err, first)
		}

		// The database that exported the entries knows all of them.
		got, err := b.importFrom(bytes.NewReader(file.Bytes()))
		if err != nil || got != (importCounts{Known: 125}) {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, there := range []kit.Database{kit.Postgres(t), kit.SQLite(t)} {
			other := newBench(t, there, nil)
			other.quarantine("shipping", "other") // so that IDs differ
			got, err := other.importFrom(bytes.NewReader(file.Bytes()))
			if err != nil || got != (importCounts{New: 125}) {
				t.Fatalf("%s: %+v, %v", there.Dialect, got, err)
			}
			got, err = other.importFrom(strings.NewReader(file.String() + "\n" + file.String()))
			if err != nil || got != (importCounts{Known: 250}) {
				t.Fatalf("%s again: %+v, %v", there.Dialect, got, err)
			}
			imported := other.list2()[1:]
			if want := told(original); strings.Join(told(imported), "\n") != strings.Join(want, "\n") {
				t.Fatalf("%s: imported\n%s\nwant\n%s", there.Dialect, told(imported)[:5], want[:5])
			}
			other.WantNumber(125, `SELECT COUNT(*) FROM once_audit WHERE action = 'import' AND actor = 'ann'`)
			// Export from the other database, and import into the first one again.
			var again bytes.Buffer
			kit.OK(t, kit.Err(other.store.Export(t.Context(), operate.Filter{Consumer: "payments", Limit: 5}, &again)))
			if got, err := b.importFrom(&again); err != nil || got != (importCounts{Known: 5}) {
				t.Fatalf("back: %+v, %v", got, err)
			}
		}
	})
}

// Two entries that differ only in their IDs must both be imported, even if the database
// that imports them has another entry with one of these IDs.
func TestMessagesWithoutIDAreAllImported(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for range 2 {
			b.quarantine("payments", "")
		}
		kit.Exec(t, db, `UPDATE once_parked SET created_at = (SELECT MIN(created_at) FROM once_parked)`)
		var file bytes.Buffer
		kit.OK(t, kit.Err(b.store.Export(t.Context(), operate.Filter{}, &file)))
		other := newBench(t, kit.SQLite(t), nil)
		other.quarantine("payments", "another") // another entry, so that the first message gets the ID that the second one had
		for _, want := range []importCounts{{New: 2}, {Known: 2}} {
			if got, err := other.importFrom(bytes.NewReader(file.Bytes())); err != nil || got != want {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		}
	})
}

// list2 returns all entries in quarantine, up to 10,000.
func (b *bench) list2() []quarantine.Entry {
	b.Helper()
	page, err := b.store.List(b.Context(), operate.Filter{Limit: 10_000})
	kit.OK(b, err)
	return page.Rows
}

// do is a reader and a writer. Each read and each write calls the function.
type do func() error

func (d do) Read([]byte) (int, error)    { return 0, cmp.Or(d(), io.EOF) }
func (d do) Write(p []byte) (int, error) { return len(p), d() }

// Large messages are exported in small batches, because a process may not have enough
// memory for a hundred large rows.
func TestLargeMessagesAreExportedInSmallBatches(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for _, id := range []string{"m1", "m2", "m3"} {
			kit.OK(t, b.handle("payments", message.NewMessage(id, make([]byte, 700<<10)), failing(errHandler)))
		}
		last := b.list()[2].ID
		var file bytes.Buffer
		if n, err := b.store.Export(t.Context(), operate.Filter{Limit: 3}, &file); n != 3 || err != nil {
			t.Fatalf("%d exported, %v", n, err)
		}
		// An entry that leaves the quarantine while the first entry is written has not
		// been read yet.
		var once sync.Once
		n, err := b.store.Export(t.Context(), operate.Filter{}, do(func() (err error) {
			once.Do(func() { err = b.store.Discard(t.Context(), act, last) })
			return err
		}))
		if n != 2 || err != nil {
			t.Fatalf("%d exported, %v", n, err)
		}

		kit.Exec(t, db, `DELETE FROM once_parked`)
		lines := bytes.SplitAfter(file.Bytes(), []byte("\n"))
		before := 0
		got, err := b.importFrom(io.MultiReader(bytes.NewReader(lines[0]), bytes.NewReader(lines[1]),
			do(func() error { before = len(b.list()); return nil }), bytes.NewReader(lines[2])))
		if err != nil || got.New != 3 || before != 2 {
			t.Fatalf("%+v, of these %d before the last was read, %v", got, before, err)
		}
	})
}

// An export that fails returns the number of complete lines.
func TestFailedExportCountsTheWrittenEntries(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	b.fill("payments", 150)
	var file bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	n, err := b.store.Export(ctx, operate.Filter{}, io.MultiWriter(&file, do(func() error { cancel(); return nil })))
	if lines := bytes.Count(file.Bytes(), []byte("\n")); !errors.Is(err, context.Canceled) || n != 100 || lines < n {
		t.Fatalf("%d exported, %d lines, %v", n, lines, err)
	}
}

// An import keeps the difference between two entries: the edited one can be replayed,
// and the one that could not be decoded cannot.
func TestEditedEntryStaysEditedAfterImport(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.raw("payments", "odd")
		_, err := b.store.Edit(t.Context(), act, b.list()[0].ID, func(*message.Message) error { return nil },
			quarantine.EditOptions{KeepQuarantined: true})
		kit.OK(t, err)
		b.raw("payments", "raw")
		for range 2 { // the second time, from the database that imported it
			var file bytes.Buffer
			kit.OK(t, kit.Err(b.store.Export(t.Context(), operate.Filter{}, &file)))
			b = newBench(t, kit.SQLite(t), nil)
			kit.OK(t, kit.Err(b.importFrom(&file)))
		}
		edited, raw := b.list()[0], b.list()[1]
		if edited.EditedFrom != 0 {
			t.Errorf("edited from %d, which is another entry here", edited.EditedFrom)
		}
		kit.Check(t, b.store.Replay(t.Context(), act, edited.ID))
		if err := b.store.Replay(t.Context(), act, raw.ID); !errors.Is(err, quarantine.ErrUndecodable) {
			t.Errorf("error %v", err)
		}
	})
}

func TestImportRefusesChangedLine(t *testing.T) {
	b := newBench(t, kit.SQLite(t), nil)
	b.quarantine("payments", "m1")
	var file bytes.Buffer
	kit.OK(t, kit.Err(b.store.Export(t.Context(), operate.Filter{}, &file)))
	kit.OK(t, b.store.Discard(t.Context(), act, b.list()[0].ID))
	good := strings.TrimSpace(file.String())
	for name, c := range map[string]struct{ line, text string }{
		"no JSON":       {"{", "line 2"},
		"message id":    {strings.Replace(good, `"message_id":"m1"`, `"message_id":"m2"`, 1), "message_id"},
		"digest":        {strings.Replace(good, `"digest":"`, `"digest":"00`, 1), "digest"},
		"no hex":        {strings.Replace(good, `"digest":"`, `"digest":"x`, 1), "digest"},
		"no origin":     {strings.Replace(good, `"origin":"`, `"origin":"","x":"`, 1), "origin"},
		"no reason":     {strings.Replace(good, `"reason":"failed"`, `"reason":""`, 1), "reason"},
		"version":       {strings.Replace(good, `"version":1`, `"version":2`, 1), "version is 2"},
		"no created_at": {strings.Replace(good, `"created_at":`, `"x":`, 1), "created_at"},
	} {
		_, err := b.importFrom(strings.NewReader("\n" + c.line + "\n"))
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, _, err := b.store.Import(t.Context(), operate.Act{}, strings.NewReader(good)); err == nil ||
		!strings.Contains(err.Error(), "Actor") {
		t.Errorf("nobody: error %v", err)
	}
	// A discarded entry is known, and stays discarded.
	got, err := b.importFrom(strings.NewReader(good))
	if err != nil || got != (importCounts{Known: 1}) || len(b.list()) != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}
