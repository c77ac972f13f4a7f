package main

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

// kills is how often the test kills the service.
const kills = 20

// The service is killed at random moments, many times, and restarted each time.
// Meanwhile clients place orders. No order is lost, and no effect happens twice.
func TestKilledAtAnyMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes: runs without -short, in make test-all")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "orders")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		newVictim(t, binary,
			sqliteFile(t, dir, "orders.db"), sqliteFile(t, dir, "outside.db"),
			"-data", dir,
		).test()
	})
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		postgres, broker := testenv.Postgres(t), broker(t)
		newVictim(t, binary,
			postgresSchema(t, postgres), postgresSchema(t, postgres),
			"-db", postgres, "-amqp", broker.URL, "-namespace", broker.Namespace,
		).test()
	})
}

func sqliteFile(t *testing.T, dir, name string) service.Database {
	t.Helper()
	database, err := service.SQLite(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return database
}

func postgresSchema(t *testing.T, dsn string) service.Database {
	t.Helper()
	database, err := service.Postgres(dsn, "orders")
	if err != nil {
		t.Fatal(err)
	}
	return database
}

func pool(t *testing.T, database service.Database) *sql.DB {
	t.Helper()
	db := database.Pool(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (v *victim) test() {
	v.start()
	stopClients := v.clients()
	var busy, unsent, running int
	for kill := range kills {
		if kill%4 > 0 { // every fourth time, the kill may come before the first order
			placed := v.placed()
			testenv.Eventually(v, time.Minute, "the service takes orders", func() bool { return v.placed() > placed+1 })
		}
		select {
		case <-time.After(rand.N(1200 * time.Millisecond)): // kill at a random moment
		case <-v.Context().Done():
			v.Fatal("no time left")
		}
		v.kill()
		// While the service does not run, its unfinished work can be counted.
		undone := v.undone()
		v.Log("killed with ", undone)
		busy += min(undone.orders, 1)
		unsent += min(undone.unsent, 1)
		running += min(undone.running, 1)
		if kill == kills-1 { // now the service may finish its work
			v.lease = longLease
		}
		v.start()
	}
	stopClients()
	v.finish()

	v.Logf("%d orders; of %d kills, %d left unfinished orders, %d unsent events, %d running handlers; the bank was asked %d times again",
		len(v.journal), kills, busy, unsent, running, v.count(v.mail, `SELECT SUM(tries) - COUNT(*) FROM bank`))
	// With a broker, no table contains the messages that are being handled.
	if busy < kills/2 || unsent < kills/4 || running == 0 && !v.broker {
		v.Error("most kills hit an idle service, so the test shows nothing")
	}
	v.audit()
}

// undone counts the unfinished work of a service that was killed.
type undone struct {
	orders  int // orders that lack some of their effects
	unsent  int // events in the outbox
	parked  int // messages that wait in the consumers' table
	running int // parked messages whose handler was running when the service was killed
}

func (u undone) String() string {
	return fmt.Sprintf("%d orders unfinished, %d events unsent, %d messages parked, %d handlers running",
		u.orders, u.unsent, u.parked, u.running)
}

func (v *victim) undone() undone {
	v.Helper()
	return undone{
		orders:  v.incomplete(),
		unsent:  v.count(v.db, `SELECT COUNT(*) FROM once_outbox`),
		parked:  v.count(v.db, `SELECT COUNT(*) FROM once_parked WHERE state IN ('waiting', 'held')`),
		running: v.count(v.db, `SELECT COUNT(*) FROM once_parked WHERE state = 'waiting' AND token IS NOT NULL`),
	}
}

// incomplete counts the orders that lack some of their effects.
func (v *victim) incomplete() int {
	v.Helper()
	return v.count(v.db, `
		SELECT COUNT(*) FROM orders
		WHERE id NOT IN (SELECT order_id FROM payments) OR id NOT IN (SELECT order_id FROM reservations)
		   OR id NOT IN (SELECT order_id FROM revenue UNION SELECT order_id FROM refunds)
		   OR id NOT IN (SELECT order_id FROM tracking WHERE status IN ('shipped', 'cancelled'))
		   OR (SELECT COUNT(*) FROM history WHERE order_id = orders.id) < 3`)
}

// finish waits until all orders are handled, and stops the service.
func (v *victim) finish() {
	v.Helper()
	entries, err := quarantine.New(v.db, operate.Config{Schema: v.tables})
	if err != nil {
		v.Fatal(err)
	}
	var u undone
	defer func() {
		if v.Failed() {
			v.Log("at the end: ", u)
		}
	}()
	testenv.Eventually(v, 3*time.Minute, "all orders are handled", func() bool {
		v.replayCrashed(entries)
		u = v.undone()
		return u.orders == 0 && u.unsent == 0 && u.parked == 0 &&
			v.count(v.mail, `SELECT COUNT(DISTINCT reference) FROM mail_provider`) >=
				v.count(v.db, `SELECT (SELECT COUNT(*) FROM orders) + (SELECT COUNT(*) FROM refunds)`)
	})
	if err := v.process.Process.Signal(syscall.SIGTERM); err != nil {
		v.Fatal(err)
	}
	if err := v.process.Wait(); err != nil {
		v.Errorf("the service ended with %v", err)
	}
	v.process = nil
}

// replayCrashed replays the messages that are in quarantine because they were being
// handled during too many kills. In production an operator would do this.
func (v *victim) replayCrashed(entries *quarantine.Entries) {
	v.Helper()
	page, err := entries.List(v.Context(), operate.Filter{Reason: poison.ReasonCrashed})
	if err != nil {
		v.Fatal(err)
	}
	for _, e := range page.Rows {
		v.Logf("%s of %s is in quarantine after %d kills", e.MessageID, e.Consumer, e.Crashes)
		if err := entries.Replay(v.Context(), operate.Act{Actor: "test", Why: "the kills of the test were the cause"}, e.ID); err != nil {
			v.Fatal(err)
		}
		v.replayed = true
	}
}

// audit checks the tables after the service has stopped.
func (v *victim) audit() {
	v.Helper()
	ids := map[string]bool{}
	for _, id := range v.journal {
		ids[id] = true
		if n := v.count(v.db, `SELECT COUNT(*) FROM orders WHERE id = '`+id+`'`); n != 1 {
			v.Errorf("order %s was answered with 201, and the table has it %d times", id, n)
		}
	}
	if len(ids) != len(v.journal) {
		v.Errorf("%d keys were answered with %d different orders", len(v.journal), len(ids))
	}
	if n := v.count(v.db, `SELECT COUNT(*) FROM orders`); n != len(v.journal) {
		v.Errorf("%d orders for %d keys", n, len(v.journal))
	}
	// Every seventh order of a client needs a unicorn, which is sold out, and is
	// cancelled.
	const soldOut = `SELECT order_id FROM order_lines WHERE sku = 'unicorn'`
	for table, of := range map[string]string{
		"payments": "", "reservations": "", "tracking": "", "shipments": "NOT IN", "revenue": "NOT IN", "refunds": "IN", "cancellations": "IN",
	} {
		want := "1"
		if of != "" {
			want = `(CASE WHEN id ` + of + ` (` + soldOut + `) THEN 1 ELSE 0 END)`
		}
		v.zero("orders with too many or too few entries in "+table,
			`SELECT COUNT(*) FROM orders WHERE (SELECT COUNT(*) FROM `+table+` WHERE order_id = orders.id) <> `+want)
		v.zero("entries of no order in "+table, `SELECT COUNT(*) FROM `+table+` WHERE order_id NOT IN (SELECT id FROM orders)`)
	}
	v.zero("difference between ordered and reserved items",
		`SELECT (SELECT SUM(quantity) FROM order_lines WHERE order_id NOT IN (`+soldOut+`)) - (SELECT SUM(reserved) FROM stock)`)
	v.zero("difference between payments, refunds and revenue",
		`SELECT (SELECT SUM(amount) FROM payments) - (SELECT COALESCE(SUM(amount), 0) FROM refunds) - (SELECT SUM(amount) FROM revenue)`)
	if bank, books := v.count(v.mail, `SELECT SUM(CASE kind WHEN 'charge' THEN amount ELSE -amount END) FROM bank`),
		v.count(v.db, `SELECT SUM(amount) FROM revenue`); bank != books {
		v.Errorf("the bank has %d, and the revenue is %d", bank, books)
	}
	v.zero("orders whose history does not have three entries",
		`SELECT COUNT(*) FROM orders WHERE (SELECT COUNT(*) FROM history WHERE order_id = orders.id) <> 3`)
	if !v.replayed { // while a message is in quarantine, later messages overtake it
		v.zero("entries of a history in the wrong order",
			`SELECT COUNT(*) FROM history AS a JOIN history AS b USING (order_id) WHERE a.entry < b.entry AND a.version > b.version`)
	}
	v.zero("messages in quarantine", `SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`)
	v.zero("dead letters", `SELECT COUNT(*) FROM once_outbox_dead`)
	refunds := v.count(v.db, `SELECT COUNT(*) FROM refunds`)
	mails := v.count(v.mail, `SELECT COUNT(*) FROM mail_provider`)
	recipients := v.count(v.mail, `SELECT COUNT(DISTINCT order_id) FROM mail_provider`)
	if mails != len(v.journal)+refunds || recipients != len(v.journal) || refunds == 0 {
		v.Errorf(
			"%d mails about %d orders, want one about each of %d, and one about each of %d refunds", mails, recipients, len(v.journal), refunds)
	}
}

func (v *victim) zero(what, query string) {
	v.Helper()
	if n := v.count(v.db, query); n != 0 {
		v.Errorf("%d %s", n, what)
	}
}

func (v *victim) count(db *sql.DB, query string) int {
	v.Helper()
	var n int
	if err := db.QueryRowContext(v.Context(), query).Scan(&n); err != nil {
		v.Fatalf("%s: %v", query, err)
	}
	return n
}
