package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// pair is a sender and its consumer "payments". One message is lost, and one handled
// message was never sent. Both happened three hours ago. The oldest row of each table
// is five hours old.
type pair struct {
	*shell // of the sender

	receiver *shell
}

func newPair(t *testing.T, from, to kit.Database) *pair {
	t.Helper()
	insert := func(db kit.Database, query string, ago time.Duration, ids ...string) {
		t.Helper()
		var at any = time.Now().Add(-ago)
		if db.Dialect == string(schema.SQLite) {
			at = time.Now().Add(-ago).UnixMilli()
		}
		for _, id := range ids {
			kit.Exec(t, db, query, id, at)
		}
	}
	const (
		sent = `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
			VALUES (1, $1, 'orders.placed', 'x', '{}', $2, $2)`
		handled = `INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ($1, 'payments', $2, 'x')`
	)
	p := &pair{newShell(t, from), newShell(t, to)}
	insert(from, sent, 5*time.Hour, "first")
	insert(from, sent, 3*time.Hour, "both", "lost")
	insert(to, handled, 5*time.Hour, "first")
	insert(to, handled, 3*time.Hour, "both", "phantom")
	p.env["ONCE_CONSUMER_DSN"] = p.receiver.env["ONCE_DSN"]
	return p
}

func (p *pair) file(name string) string { return filepath.Join(p.TempDir(), name) }

func eachPair(t *testing.T, test func(p *pair)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		kit.Long(t) // see eachDatabase
		test(newPair(t, kit.Postgres(t), kit.Postgres(t)))
	})
	t.Run("sqlite", func(t *testing.T) { test(newPair(t, kit.SQLite(t), kit.SQLite(t))) })
}

func TestReconcileRun(t *testing.T) {
	eachPair(t, func(p *pair) {
		args := []string{"reconcile", "run", "--topic", "orders.placed", "--consumer", "payments", "--longest-delay", "1h"}
		text := p.once(exitFound, args...)
		p.says(text, "missing", "1, the first was sent", "lost", "never sent", "phantom", "once sent replay", "handled")
		out := object[reconcileJSON](&shell{T: p.T, env: p.env}, exitFound, args...)
		if r := out.Reports[0]; r.Consumer != "payments" || r.Missing[0].MessageID != "lost" || r.Phantoms[0].MessageID != "phantom" {
			p.Errorf("got %+v", out)
		}
		p.says(p.once(exitDone, "reconcile", "run", "--topic", "orders.placed", "--consumer", "payments", "--since", "2h"), "missing")
		p.says(p.once(exitFailed, "reconcile", "run", "--topic", "orders.placed", "--consumer", "paymets"), `"paymets"`, "spelling")
	})
}

// The sides exchange files, and have no access to each other's database.
func TestReconcileByFiles(t *testing.T) {
	eachPair(t, func(p *pair) {
		delete(p.env, "ONCE_CONSUMER_DSN")
		question, answer := p.file("question.json"), p.file("answer.json")
		p.says(p.once(exitDone, "reconcile", "ask", "--topic", "orders.placed", "--file", question), "question.json", "bytes")
		p.says(p.receiver.once(exitDone, "reconcile", "answer", question, "--consumer", "payments", "--file", answer), "answer.json")
		p.says(p.once(exitFound, "reconcile", "read", answer, "--topic", "orders.placed", "--longest-delay", "1h"), "lost", "phantom")

		p.says(p.once(exitFailed, "reconcile", "read", question, "--topic", "orders.placed"), "the side of the consumers answers it")
		p.says(p.receiver.once(exitFailed, "reconcile", "answer", answer, "--consumer", "payments"), "the side of the sender reads it")
		p.says(p.once(exitFailed, "reconcile", "read", answer, "--topic", "orders.paid"), "orders.paid")

		// By standard input and output.
		p.receiver.stdin = p.run(p.Context(), "reconcile", "ask", "--topic", "orders.placed").stdout
		p.stdin = p.receiver.run(p.Context(), "reconcile", "answer", "-", "--consumer", "payments").stdout
		p.says(p.once(exitFound, "reconcile", "read", "-", "--topic", "orders.placed"), "lost")

		kit.OK(p, os.Truncate(answer, 100))
		p.says(p.once(exitFailed, "reconcile", "read", answer, "--topic", "orders.placed"), "damaged", filepath.Base(answer))
	})
}

func TestReconcileLedger(t *testing.T) {
	eachPair(t, func(p *pair) {
		p.says(p.once(exitDone, "reconcile", "ledger", "--by", "hour,topic"), "HOUR", "TOPIC", "orders.placed", "sent")
		out := object[ledgerJSON](p.receiver, exitDone, "reconcile", "ledger", "--by", "consumer")
		if len(out.Lines) != 1 || out.Lines[0].N != 3 || out.Lines[0].Consumer != "payments" {
			p.Errorf("got %+v", out)
		}
		p.says(p.once(exitDone, "reconcile", "ledger", "--until", "9d"), "no messages of this time")
	})
}

// If a process is killed while it writes a file, the old file must remain unchanged,
// and the next process must be able to repeat the step.
func TestReconcileFilesAreWrittenWholly(t *testing.T) {
	p := newPair(t, kit.SQLite(t), kit.SQLite(t))
	name := p.file("question.json")
	kit.OK(t, os.WriteFile(name, []byte("old"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), stallingWriter+"="+name)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	kit.OK(t, err)
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // half of the file is written
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	left, err := os.ReadFile(name)
	if err != nil || string(left) != "old" {
		t.Fatalf("%q, %v", left, err)
	}
	p.once(exitDone, "reconcile", "ask", "--topic", "orders.placed", "--file", name)
	p.says(p.receiver.once(exitDone, "reconcile", "answer", name, "--consumer", "payments"), `"kind":"answer"`)
}

// stallingWriter is the environment variable that makes the test binary write half of a
// file.
const stallingWriter = "ONCE_TEST_STALLING_WRITER"

// half writes the beginning of a file, writes a dot to standard output as a signal, and
// waits until the test kills the process.
type half struct{}

func (half) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write([]byte(`{"format":`))
	if err == nil {
		_, err = os.Stdout.WriteString(".")
	}
	if err == nil {
		<-time.After(time.Hour)
	}
	return int64(n), err
}

func TestReconcileHidesBothPasswords(t *testing.T) {
	s := &shell{T: t, env: map[string]string{
		"ONCE_DSN": "sqlite:" + filepath.Join(t.TempDir(), "none"), "ONCE_CONSUMER_DSN": "postgres://ann:pa55word@127.0.0.1:1/d",
	}}
	got := s.run(t.Context(), strings.Fields("reconcile run --topic t --consumer c")...)
	if got.code != exitFailed || strings.Contains(got.stdout+got.stderr, "pa55word") {
		t.Errorf("%+v", got)
	}
	db := kit.SQLite(t)
	s = newShell(t, db)
	s.env["ONCE_CONSUMER_DSN"] = "postgres://ann:pa55word@127.0.0.1:1/d?sslmode=pa55word"
	got = s.run(t.Context(), strings.Fields("reconcile run --topic t --consumer c")...)
	if got.code == exitDone || strings.Contains(got.stdout+got.stderr, "pa55word") || !strings.Contains(got.stderr, "consumers' side") {
		t.Errorf("%+v", got)
	}
}
