package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// archived returns the message ids in the files of a directory, in their order.
func archived(t *testing.T, dir string) (ids []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	kit.OK(t, err)
	for _, entry := range files {
		if !strings.HasSuffix(entry.Name(), ".jsonl") {
			continue
		}
		file, err := os.Open(filepath.Join(dir, entry.Name()))
		kit.OK(t, err)
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			var row struct {
				MessageID string `json:"message_id"`
				Payload   []byte `json:"payload"`
			}
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil || entry.Name()[0] == 's' && string(row.Payload) != "body" {
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
	eachDatabase(t, func(t *testing.T, db kit.Database) {
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
				kit.Exec(t, db, fmt.Sprintf(`INSERT INTO once_outbox_sent
					(position, message_id, topic, payload, metadata, created_at)
					VALUES (%d, 'm%d', 't', 'body', '{}', %s)`, next, next, now))
			}
		}
		parent := t.TempDir()
		dir, other := filepath.Join(parent, "[a]"), filepath.Join(parent, "a") // the name is no pattern
		kit.OK(t, errors.Join(os.Mkdir(other, 0o700), os.WriteFile(filepath.Join(other, "sent-9999999999999999999.jsonl"), nil, 0o600)))
		s.says(s.once(exitDone, "archive", "sent", dir), "Archived 0 messages to 0 files.")
		send(5)
		out := object[archiveSentJSON](s, exitDone, "archive", "sent", dir, "--rows", "2")
		if out.Archived != 5 || len(out.Files) != 3 || out.LastID != 5 {
			t.Errorf("archive %+v", out)
		}
		send(2)
		// A call that was killed before its file got its name.
		kit.OK(t, os.WriteFile(filepath.Join(dir, ".sent-123.tmp"), []byte(`{"id":6`), 0o600))
		s.once(exitDone, "archive", "sent", dir)
		s.once(exitDone, "archive", "sent", dir)
		if got := strings.Join(archived(t, dir), " "); got != "m1 m2 m3 m4 m5 m6 m7" {
			t.Errorf("archived: %s", got)
		}

		// Another process has written the file meanwhile.
		d, err := openSentArchive(dir)
		kit.OK(t, err)
		if d.lastID != 7 {
			t.Errorf("the archive ends at %d", d.lastID)
		}
		send(1)
		kit.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("sent-%019d.jsonl", 8)), []byte(`{"id":8`), 0o600))
		s.says(s.once(exitFailed, "archive", "sent", dir), "sent-0000000000000000008.jsonl is damaged (the last line has no end)")
	})
}

// handle inserts rows of messages that were handled some time ago. Every seven rows
// share one time.
func handle(t *testing.T, db kit.Database, prefix string, n int, ago time.Duration) (ids []string) {
	t.Helper()
	query := `INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT $1 || '-' || n, 'payments', '', $2::timestamptz + n / 7 * interval '1 millisecond' FROM generate_series(0, $3 - 1) AS n`
	from := time.Now().Add(-ago)
	args := []any{prefix, from, n}
	if db.Dialect == "sqlite" {
		query = `WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?3 - 1)
			INSERT INTO once_inbox (message_id, consumer, digest, processed_at) SELECT ?1 || '-' || n, 'payments', '', ?2 + n / 7 FROM numbers`
		args[1] = from.UnixMilli()
	}
	kit.Exec(t, db, query, args...)
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
	}
	return ids
}

// expectArchived fails the test unless the archive has each of these messages once.
func expectArchived(t *testing.T, dir string, want []string) {
	t.Helper()
	got := archived(t, dir)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%d rows are archived, %d of them different; want %d", len(got), len(slices.Compact(slices.Clone(got))), len(want))
	}
}

func TestArchiveOfHandledMessages(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		dir := filepath.Join(t.TempDir(), "archive")
		s.says(s.once(exitDone, "archive", "handled", dir), "Archived 0 rows to 0 files.")
		all := handle(t, db, "a", 50, time.Hour)
		out := object[archiveHandledJSON](s, exitDone, "archive", "handled", dir, "--rows", "20")
		if ago := time.Since(out.Until); out.Archived != 50 || len(out.Files) != 3 || ago < 50*time.Second || ago > 10*time.Minute {
			t.Errorf("archive %+v", out)
		}
		expectArchived(t, dir, all)
		handle(t, db, "latest", 1, 0) // rows with about this time may not be committed yet
		all = append(all, handle(t, db, "b", 5, 2*time.Minute)...)
		kit.OK(t, os.WriteFile(filepath.Join(dir, ".handled-123.tmp"), []byte(`{"version":1`), 0o600))
		s.says(s.once(exitDone, "archive", "handled", dir), "Archived 5 rows to 1 file.")
		s.says(s.once(exitDone, "archive", "handled", dir), "Archived 0 rows to 0 files.")
		expectArchived(t, dir, all)

		// The archive of another log, and a damaged archive.
		s.says(s.once(exitDone, "archive", "sent", dir), "Archived 0 messages to 0 files.")
		kit.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("handled-%019d.jsonl", 9)), []byte("{}\n"), 0o600))
		s.says(s.once(exitFailed, "archive", "handled", dir), "handled-0000000000000000009.jsonl is damaged", "version is 0", "move it away")
	})
}

// Two calls at the same time do not archive a row twice.
func TestTwoArchivesOfHandledMessages(t *testing.T) {
	db := kit.SQLite(t)
	s := newShell(t, db)
	dir := t.TempDir()
	all := handle(t, db, "a", 10, time.Hour)
	slow, err := openHandledArchive(dir)
	kit.OK(t, err)
	s.once(exitDone, "archive", "handled", dir)
	a := &app{}
	a.settings.dsn = db.DSN
	opened, err := a.open(t.Context(), false)
	kit.OK(t, err)
	defer opened.Close()
	log, err := handledLog(opened)
	kit.OK(t, err)
	if _, err := slow.append(t.Context(), log, archiveOptions{rows: 100, wait: time.Minute}); err == nil ||
		!strings.Contains(err.Error(), "does another once archive write to this directory?") {
		t.Errorf("the second call: %v", err)
	}
	expectArchived(t, dir, all)
}

// archivingTo is the environment variable that makes the test binary archive handled
// messages to a directory.
const archivingTo = "ONCE_TEST_ARCHIVING_TO"

func archiveUntilKilled(dir string) int {
	a := &app{stdin: strings.NewReader(""), stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv}
	return a.run(context.Background(), []string{"archive", "handled", dir, "--rows", os.Getenv("ONCE_TEST_ROWS")})
}

// "once archive handled" is killed in the middle of a file, and between files. After
// the next call, each row must be in the files exactly once.
func TestKilledArchiveOfHandledMessages(t *testing.T) {
	kit.Long(t)
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newShell(t, db)
		dir := t.TempDir()
		all := handle(t, db, "a", 100_000, time.Hour)
		files := func(pattern string) []string {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			kit.OK(t, err)
			return found
		}
		for _, round := range []struct {
			rows string
			kill func() bool
		}{
			{"1000000", func() bool { // in the middle of a file
				for _, name := range files(".handled-*.tmp") {
					if info, err := os.Stat(name); err == nil && info.Size() > 0 {
						return true
					}
				}
				return false
			}},
			{"10", func() bool { return len(files("handled-*.jsonl")) >= 3 }},
			{"10", func() bool { return len(files("handled-*.jsonl")) >= 40 }},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			command := exec.CommandContext(ctx, os.Args[0])
			command.Env = append(os.Environ(), archivingTo+"="+dir, "ONCE_TEST_ROWS="+round.rows, "ONCE_DSN="+db.DSN)
			command.Stderr = os.Stderr
			ended := kit.StartChild(t, command)
			for !round.kill() {
				select {
				case <-ended:
					t.Fatalf("the archive ended before it was killed, with %d files", len(files("*.jsonl")))
				case <-time.After(time.Millisecond):
				}
			}
			_ = command.Process.Kill()
			<-ended
			all = append(all, handle(t, db, fmt.Sprintf("later-%d", len(all)), 3, 3*time.Minute)...)
		}
		if n := len(archived(t, dir)); n == 0 || n >= 100_000 {
			t.Fatalf("%d rows are archived before the end: nothing was interrupted", n)
		}
		s.once(exitDone, "archive", "handled", dir)
		expectArchived(t, dir, all)
	})
}
