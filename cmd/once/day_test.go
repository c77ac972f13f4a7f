package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// An operator works for a day with the command line only. The files in testdata/day
// contain the commands, their output, and notes about everything else that happens.
func TestOperatorsDay(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	orders, payments, ordersDB, service := newShop(t)
	d, quarantined := &day{T: t}, 0
	sent := func() {
		t.Helper()
		kit.Eventually(t, time.Minute, "everything is sent", func() bool { return waiting(orders) == 0 })
	}
	hasAllSlots := func() {
		t.Helper()
		kit.Eventually(t, time.Minute, "one forwarder has all slots", func() bool {
			f := object[statusJSON](orders, exitDone, "status").Forwarders
			return len(f) == 1 && f[0].Slots == 64
		})
	}
	charged := func(n int) {
		t.Helper()
		kit.Eventually(t, 3*time.Minute, fmt.Sprint(n, " orders are charged"), func() bool { return service.charges(t) == n })
	}

	d.chapter("1-tables.txt", "Two new services: orders sends, payments handles. Each has its own database.")
	d.types(orders, exitFound, "migrate", "check")
	d.types(orders, exitDone, "migrate", "up")
	d.types(payments, exitDone, "migrate", "up")
	d.types(orders, exitDone, "migrate", "check")
	fwd := startForward(orders, "--keep-sent", "24h")
	d.note("once forward --keep-sent 24h runs now.")
	hasAllSlots()
	d.types(orders, exitDone, "status")

	d.chapter("2-a-topic-without-a-queue.txt", "orders is deployed before payments. The first three orders are placed.")
	place(orders, ordersDB, manyOrders(1, 3, func(*order) {})...)
	refusedForLong(t, ordersDB)
	d.note("After 20 minutes the broker has refused them 11 times.")
	d.types(orders, exitDone, "status")
	d.types(orders, exitDone, "outbox", "topics")
	d.types(orders, exitDone, "outbox", "list")
	d.types(orders, exitFound, "doctor")
	service.start(t)
	d.note("payments is deployed, which creates the queue. The forwarder would send the messages at their\n" +
		"next attempt. The operator does not wait for it.")
	d.types(orders, exitDone, "outbox", "retry", "--topic", placed)
	d.types(orders, exitDone, "outbox", "retry", "--topic", placed, "--yes")
	sent()
	charged(3)
	d.types(orders, exitDone, "status")

	later(t, ordersDB, service.db)

	d.chapter("3-a-poisoned-deploy.txt", "A new release of payments fails on 2,000 of the next 2,100 orders.")
	place(orders, ordersDB, manyOrders(101, 100, func(*order) {})...)
	short := func(o *order) { o.Street = "Main Street 1" }
	for _, some := range [][]order{ // the order with a long address is the 20th of its group
		manyOrders(3001, 19, short),
		manyOrders(3020, 1, func(o *order) { o.Street = "The Old Mill, behind the bakery, Main Street 1" }),
		manyOrders(3021, 20, short),
		manyOrders(1001, 1900, func(o *order) { o.Currency = "EUR" }),
		manyOrders(4001, 55, func(o *order) { o.Cents = -5 }),
		manyOrders(5001, 5, func(o *order) { o.Cents, o.tenant = -5, "test" }),
	} {
		quarantined += len(some)
		place(orders, ordersDB, some...)
		kit.Eventually(t, 3*time.Minute, fmt.Sprint(quarantined, " messages are in quarantine"), func() bool {
			return object[countJSON](payments, exitDone, "quarantine", "count").Count == quarantined
		})
	}
	charged(103)
	sent()
	d.types(payments, exitDone, "status")
	d.types(payments, exitDone, "quarantine", "groups")
	d.types(payments, exitDone, "quarantine", "show", d.entry(payments, "order-1001", "57"))

	d.chapter("4-fix-and-replay.txt", "Release 2 of payments knows the exchange rate. Its entries are replayed: first what would happen,\n"+
		"then ten of them, then the others.")
	service.release.Store(knowsEuros)
	rates := d.group(payments, "no exchange rate for EUR")
	d.types(payments, exitDone, "quarantine", "replay", "--group", rates)
	d.types(payments, exitDone, "quarantine", "replay", "--group", rates, "--canary", "10", "--rate", "1000", "--stop-on-failure",
		"--why", "release 2 knows EUR", "--yes")
	charged(2003)
	d.types(payments, exitDone, "quarantine", "groups")

	d.chapter("5-stop-on-a-new-failure.txt", "Release 3 reads the new addresses. One of them is longer than it expects:\n"+
		"the replay stops there.")
	service.release.Store(knowsEuros | takesAddresses)
	d.types(payments, exitFailed, "quarantine", "replay", "--group", d.group(payments, "has an unknown format"), "--canary", "10",
		"--window", "1", "--stop-on-failure", "--why", "release 3 reads addresses", "--yes")
	d.types(payments, exitDone, "replays", "list")
	d.types(payments, exitDone, "quarantine", "groups")
	d.note("Release 4 takes long addresses. The replay goes on, and then the message that failed is replayed too.")
	service.release.Store(knowsEuros | takesAddresses | takesLongAddresses)
	d.types(payments, exitFound, "replays", "resume", "2")
	d.types(payments, exitDone, "quarantine", "replay", "--group", d.group(payments, "more than 40 characters"), "--yes")
	charged(2043)

	d.chapter("6-edit-and-discard.txt", "60 messages have a negative amount. No release will accept them.")
	first := d.entry(payments, "order-4001", "1941")
	payments.stdin = `{"id":"order-4001","cents":5,"currency":"USD"}`
	d.note("One amount is known. Standard input has the right payload.")
	d.types(payments, exitDone, "quarantine", "edit", first, "--payload", "-", "--why", "the sign was wrong")
	charged(2044)
	d.note("Five are of the tenant test.")
	d.types(payments, exitDone, "quarantine", "discard", "--tenant", "test")
	d.types(payments, exitDone, "quarantine", "discard", "--tenant", "test", "--why", "test orders", "--yes")
	d.types(payments, exitDone, "audit", "--message-id", "order-4001")

	d.chapter("7-export-and-import.txt", "Another team repairs the other 54. It gets them as a file, and has a database of its own.")
	repair := &shell{T: t, env: map[string]string{"PROMPT": "repair", "ONCE_DSN": kit.SQLite(t).DSN, "ONCE_ACTOR": "bob"}}
	file := filepath.Join(t.TempDir(), "negative.jsonl")
	negative := d.group(payments, "the amount is negative")
	d.types(payments, exitDone, "quarantine", "export", "--group", negative, "--file", file)
	d.types(payments, exitDone, "quarantine", "discard", "--group", negative, "--why", "the repair team has them", "--yes")
	d.types(payments, exitDone, "quarantine", "count")
	d.types(repair, exitDone, "migrate", "up")
	d.types(repair, exitDone, "quarantine", "import", file)
	d.types(repair, exitDone, "quarantine", "import", file)
	d.types(repair, exitDone, "quarantine", "groups")
	d.types(repair, exitFailed, "quarantine", "replay", "1")

	d.chapter("8-where-is-a-message.txt", "A customer asks about the order 4001. orders knows when it was sent, payments what became of it.")
	d.types(orders, exitDone, "trace", "order-4001")
	d.types(payments, exitDone, "trace", "order-4001")

	d.chapter("9-reconcile.txt", "Somebody has purged a queue, and one message is lost. Neither side has an error.\n"+
		"It shows when the two sides are compared, some hours later.")
	later(t, ordersDB, service.db)
	service.loseMessage(t, func() {
		place(orders, ordersDB, manyOrders(6001, 1, func(*order) {})...)
		sent()
	})
	later(t, ordersDB, service.db)
	compare := []string{"reconcile", "run", "--topic", placed, "--consumer", "payments", "--longest-delay", "1h"}
	d.types(orders, exitFound, compare...)
	d.types(orders, exitDone, "sent", "replay", "--message-id", "order-6001", "--why", "its queue was purged", "--yes")
	charged(2045)
	d.types(orders, exitDone, compare...)
	d.types(orders, exitDone, "reconcile", "ledger", "--by", "topic,tenant")
	d.types(payments, exitDone, "reconcile", "ledger", "--by", "consumer")

	d.chapter("10-archive.txt", "The sent log is kept for a day. Cron keeps it for longer, as files.")
	archive := filepath.Join(t.TempDir(), "sent")
	d.types(orders, exitDone, "archive", "sent", archive, "--rows", "1500")
	files, err := os.ReadDir(archive)
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	d.note("ls shows " + files[0].Name() + " and " + files[1].Name() + ".")
	d.types(orders, exitDone, "archive", "sent", archive)

	d.chapter("11-upgrade.txt", "The next release of once has one more migration. Old and new processes run side by side.")
	next := &binary{shell: orders, path: nextRelease(t)}
	d.newer(next, exitFound, "migrate", "check")
	d.newer(next, exitDone, "migrate", "up")
	d.note("The old release works with the new tables, as the migration says.")
	d.types(orders, exitDone, "migrate", "check")
	d.note("A forwarder of the new release is started, and then the old one is stopped.")
	stopNew := next.start("forward", "--keep-sent", "24h", "--listen", "127.0.0.1:0")
	kit.Eventually(t, time.Minute, "both forwarders have slots", func() bool {
		f := object[statusJSON](orders, exitDone, "status").Forwarders
		return len(f) == 2 && f[0].Slots == 32 && f[1].Slots == 32
	})
	d.types(orders, exitDone, "status")
	fwd.stop()
	if code := <-fwd.ended; code != exitDone {
		t.Errorf("the old forwarder ended with exit code %d", code)
	}
	hasAllSlots()
	place(orders, ordersDB, manyOrders(7001, 1, func(*order) {})...)
	charged(2046)
	d.types(orders, exitDone, "status")
	stopNew()
	d.chapter("", "")
}

// buildWith builds the command with one more migration for PostgreSQL.
func buildWith(t *testing.T, name, migration string) (path string) {
	t.Helper()
	dir := t.TempDir()
	tables, err := filepath.Abs("../../schema")
	kit.OK(t, err)
	file, overlay := filepath.Join(dir, name), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(tables, "postgres", name): file, filepath.Join(tables, "sqlite", name): file,
	}})
	kit.OK(t, err)
	for path, content := range map[string]string{file: migration, overlay: string(text)} {
		kit.OK(t, os.WriteFile(path, []byte(content), 0o600))
	}
	path = filepath.Join(dir, "once")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return path
}

// refusedForLong waits until the broker has refused all messages. It then changes their
// rows as if the broker had refused them 11 times within 20 minutes, so that the test
// need not wait that long.
func refusedForLong(t *testing.T, db kit.Database) {
	t.Helper()
	kit.Eventually(t, time.Minute, "all messages were refused and wait", func() bool {
		result, err := db.ExecContext(t.Context(), `
			UPDATE once_outbox SET attempts = 11, due_at = now() + interval '4 minutes', failing_since = now() - interval '20 minutes'
			WHERE (SELECT COUNT(*) FROM once_outbox WHERE due_at > now() + interval '300 milliseconds') = (SELECT COUNT(*) FROM once_outbox)`)
		kit.OK(t, err)
		n, err := result.RowsAffected()
		return err == nil && n > 0
	})
}

// later makes all rows three hours older.
func later(t *testing.T, orders, payments kit.Database) {
	t.Helper()
	for _, statement := range []struct {
		db    kit.Database
		query string
	}{
		{orders, `UPDATE once_outbox_sent SET sent_at = sent_at - interval '3 hours', created_at = created_at - interval '3 hours'`},
		{payments, `UPDATE once_inbox SET processed_at = processed_at - interval '3 hours'`},
		{payments, `UPDATE once_consumers SET registered_at = registered_at - interval '3 hours'`},
		{payments, `UPDATE once_parked SET created_at = created_at - interval '3 hours', finished_at = finished_at - interval '3 hours'`},
	} {
		kit.Exec(t, statement.db, statement.query)
	}
}

// binary is the command of another release.
type binary struct {
	*shell

	path string
}

func (b *binary) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), b.path, args...)
	cmd.Env = os.Environ()
	for name, value := range b.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// newer works like the method types, but runs the command of another release.
func (d *day) newer(b *binary, code int, args ...string) {
	d.Helper()
	var stdout, stderr strings.Builder
	cmd := b.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.Fatal(err)
	}
	d.text.WriteString(d.block("orders (new release)", args, result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, code))
}

// start starts a command. The returned function stop interrupts the command, and fails
// the test unless the command ends with exit code 0.
func (b *binary) start(args ...string) (stop func()) {
	b.Helper()
	var stderr kit.Buffer
	cmd := b.command(args...)
	cmd.Stderr = &stderr
	kit.OK(b, cmd.Start())
	var ended atomic.Bool
	b.Cleanup(func() {
		if !ended.Load() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return func() {
		ended.Store(true)
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			b.Errorf("%v\n%s", err, stderr.String())
		}
	}
}
