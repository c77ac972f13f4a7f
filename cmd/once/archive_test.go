package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// archived returns the message ids in the files of a directory, in their order.
func archived(t *testing.T, dir string) (ids []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			var row struct {
				MessageID string `json:"message_id"`
				Payload   []byte `json:"payload"`
			}
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil || filepath.Base(name)[0] == 's' && string(row.Payload) != "body" {
				t.Errorf("%v: %s", err, lines.Text())
			}
			ids = append(ids, row.MessageID)
		}
		_ = file.Close()
	}
	return ids
}

// An archive continues where the previous call ended, even if that call was killed
// while it wrote a file.
func TestArchive(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newShell(t, db)
		next := 0
		send := func(n int) {
			t.Helper()
			for range n {
				next++
				now := `now()`
				if db.Dialect == "sqlite" {
					now = `unixepoch() * 1000`
				}
				if _, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO once_outbox_sent
					(position, message_id, topic, payload, metadata, created_at)
					VALUES (%d, 'm%d', 't', 'body', '{}', %s)`, next, next, now)); err != nil {
					t.Fatal(err)
				}
			}
		}
		dir := filepath.Join(t.TempDir(), "archive")
		s.says(s.once(exitDone, "archive", "sent", dir), "Archived 0 messages to 0 files.")
		send(5)
		out := object[archiveSentJSON](s, exitDone, "archive", "sent", dir, "--rows", "2")
		if out.Archived != 5 || len(out.Files) != 3 || out.LastID != 5 {
			t.Errorf("archive %+v", out)
		}
		send(2)
		// A call that was killed before its file got its name.
		if err := os.WriteFile(filepath.Join(dir, ".sent-123.tmp"), []byte(`{"id":6`), 0o600); err != nil {
			t.Fatal(err)
		}
		s.once(exitDone, "archive", "sent", dir)
		s.once(exitDone, "archive", "sent", dir)
		if got := strings.Join(archived(t, dir), " "); got != "m1 m2 m3 m4 m5 m6 m7" {
			t.Errorf("archived: %s", got)
		}

		// Another process has written the file meanwhile.
		d, err := openSentArchive(dir)
		if err != nil {
			t.Fatal(err)
		}
		if d.lastID != 7 {
			t.Errorf("the archive ends at %d", d.lastID)
		}
		send(1)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("sent-%019d.jsonl", 8)), []byte(`{"id":8`), 0o600); err != nil {
			t.Fatal(err)
		}
		s.says(s.once(exitFailed, "archive", "sent", dir), "sent-0000000000000000008.jsonl is damaged (the last line has no end)")
	})
}
