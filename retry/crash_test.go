package retry_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/retry"
)

// crash simulates a process that is killed while it handles rows: it claims rows and
// never resolves them.
func (b *bench) crash(limit int, crashed bool) {
	b.Helper()
	claimed, err := b.parked.Claim(b.Context(), parkedrows.Select{
		Consumer: consumer, Topic: topic, Owner: "killed", Limit: limit, Lease: time.Millisecond, Crashed: crashed,
	})
	if err != nil || len(claimed) == 0 {
		b.Fatalf("claimed %d rows, %v", len(claimed), err)
	}
	b.Eventually("the lease has ended", func() bool {
		due, err := b.parked.Due(b.Context(), parkedrows.Select{Consumer: consumer, Topic: topic})
		return err == nil && (due.Fresh() || due.Crashed)
	})
}

// If the crash budget of a message is used up, its handler must not run again.
func TestTrap48MessageOverCrashBudgetIsQuarantined(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.CrashBudget = 2 })
		kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("killer", nil)))
		b.crash(1, false)
		b.crash(1, true)
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return nil
		})
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if entry := b.entries(parkedrows.Quarantined)[0]; calls.Load() != 0 || entry.Reason != chain.ReasonCrashed {
			t.Fatalf("%d calls, entry %+v", calls.Load(), entry)
		}
	})
}

// A process may die after the commit, before it removes the row. The inbox contains the
// message, so it must not be quarantined.
func TestTrap48AppliedMessageIsNotQuarantined(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.CrashBudget = 2 })
		b.put("done", "not done")
		b.crash(2, false)
		b.crash(2, true)
		b.handle("done")
		b.run(func(msg *message.Message) error {
			t.Errorf("the handler of %s was called", msg.UUID)
			return nil
		})
		b.Eventually("one message is in quarantine, and the row of the other is gone", func() bool {
			all := b.entries("")
			return len(all) == 1 && all[0].MessageID == "not done" && all[0].State == parkedrows.Quarantined
		})
	})
}

// handle simulates a process that dies after its commit: the inbox contains the message,
// and the row of the message still exists.
func (b *bench) handle(id string) {
	b.Helper()
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Consumer: consumer})
	kit.OK(b, err)
	handle := inbox.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	kit.OK(b, kit.Err(handle(message.NewMessage(id, nil))))
}

// A process may die while PostgreSQL is still executing its commit. The search in the
// inbox must wait until this commit has ended.
func TestTrap48InboxLookupWaitsForPendingCommit(t *testing.T) {
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.CrashBudget = 1 })
	b.put("done")
	b.crash(1, false)
	tx := kit.Begin(t, b)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest)
		SELECT message_id, consumer, sha256('') FROM once_parked`)
	b.run(func(msg *message.Message) error {
		t.Errorf("the handler of %s was called", msg.UUID)
		return nil
	})
	b.Eventually("the inbox was asked, and the row is due later", func() bool {
		return b.Count(`once_parked WHERE state = 'waiting' AND token IS NULL AND due_at > created_at + interval '1 second'`) == 1
	})
	kit.OK(t, tx.Commit())
	b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
}

// A crash is counted for all rows that the dead process had claimed. After that, each
// of these messages must be handled alone.
func TestTrap49CrashedMessagesRunAlone(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Concurrency = 4 })
		b.put("a", "b", "c")
		b.crash(10, false)
		b.put("d", "e", "f")
		var w witness
		b.run(func(msg *message.Message) error {
			defer w.enter(msg.UUID)()
			b.polls(2) // long enough for another claim
			return nil
		})
		b.allHandled()
		w.check(t, 6, "abc")
	})
}

func TestTrap49CrashedMessageWaitsForMessagesInFlight(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Concurrency = 4 })
		b.put("crashed")
		b.crash(1, false)
		due := func(in time.Duration) {
			query := b.parked.Dialect().SQL(`UPDATE {parked} SET due_at = {after $1} WHERE message_id = 'crashed'`)
			kit.Check(t, kit.Err(db.ExecContext(t.Context(), query, in.Milliseconds())))
		}
		due(time.Hour)
		b.put("neighbour")
		var w witness
		b.run(func(msg *message.Message) error {
			defer w.enter(msg.UUID)()
			if msg.UUID == "neighbour" {
				due(0)
				b.Eventually("the crashed message is due", func() bool {
					due, err := b.parked.Due(t.Context(), parkedrows.Select{Consumer: consumer, Topic: topic})
					return err == nil && due.Crashed
				})
				b.polls(10) // long enough for a claim
			}
			return nil
		})
		b.allHandled()
		w.check(t, 2, "crashed")
	})
}

// A crashed message must wait for the messages in flight of all subscriptions of the
// process, and no other message may be claimed while it is handled. If the process died
// then, a crash would be counted for every claimed message.
func TestTrap49CrashedMessageIsAloneInTheProcess(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Concurrency = 4 })
		b.put("crashed")
		b.crash(1, false)
		kit.Exec(t, db, b.parked.Dialect().SQL(`UPDATE {parked} SET due_at = {after $1}`), 3_600_000)
		const other, elsewhere = "inventory", "elsewhere"
		deliver := func(id string) {
			kit.OK(t, b.parked.Deliver(t.Context(), elsewhere, []string{other}, message.NewMessage(id, nil)))
		}
		var w witness
		running, finish := make(chan struct{}), make(chan struct{})
		b.run(func(msg *message.Message) error {
			defer w.enter(msg.UUID)()
			deliver("later")
			b.polls(10) // long enough for a claim
			return nil
		})
		router := b.router
		b.transport = newTransport()
		b.runNamed(other, elsewhere, func(msg *message.Message) error {
			defer w.enter(msg.UUID)()
			switch msg.UUID {
			case "neighbour":
				close(running)
				<-finish
			case "held back":
				select {
				case <-finish:
				default:
					t.Error("a message was handled while a crashed message waits to run alone")
				}
			}
			return nil
		})
		deliver("neighbour")
		<-running
		due := b.parked.Dialect().SQL(`UPDATE {parked} SET due_at = {now} WHERE message_id = 'crashed'`)
		kit.Exec(t, db, due)
		b.Eventually("the crashed message waits to run alone", retry.IsolationRequested)
		b.polls(10) // long enough for a claim
		deliver("held back")
		b.polls(10)
		close(finish)
		b.allHandled()
		kit.OK(t, router.Close())
		w.check(t, 4, "crashed")
	})
}

// polls waits for n poll intervals.
func (b *bench) polls(n int) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for range n {
		<-tick.C
	}
}

// put stores messages for the consumer that are due immediately.
func (b *bench) put(ids ...string) {
	b.Helper()
	for _, id := range ids {
		kit.OK(b, b.parked.Deliver(b.Context(), topic, []string{consumer}, message.NewMessage(id, nil)))
	}
}

// witness records which messages were handled at the same time.
type witness struct {
	mu       sync.Mutex
	running  map[string]bool
	together [][2]string
	handled  int
}

func (w *witness) enter(id string) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.running {
		w.together = append(w.together, [2]string{id, other})
	}
	if w.running == nil {
		w.running = map[string]bool{}
	}
	w.running[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, id)
		w.handled++
	}
}

// check fails the test if a crashed message was handled at the same time as another
// message.
func (w *witness) check(t *testing.T, handled int, crashed string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handled != handled {
		t.Fatalf("%d handled, want %d", w.handled, handled)
	}
	for _, pair := range w.together {
		if strings.Contains(crashed, pair[0]) || strings.Contains(crashed, pair[1]) {
			t.Fatalf("a crashed message ran at the same time as another: %v", pair)
		}
	}
}

// A redelivered message may have killed the process. It must be parked before its
// handler runs again, so that its row can count crashes.
func TestTrap48RedeliveredMessageIsParkedBeforeItsHandlerRuns(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		seen := make(chan []rows.Row, 1)
		b.run(func(msg *message.Message) error {
			seen <- b.entries("")
			return nil
		})
		msg := message.NewMessage("m1", nil)
		msg.Metadata[meta.Redelivered] = "true"
		if !b.transport.deliver(t, msg) {
			t.Fatal("not acked")
		}
		if all := <-seen; len(all) != 1 || all[0].Crashes != 1 || all[0].State != parkedrows.Waiting {
			t.Fatalf("the rows are %+v while the handler runs", all)
		}
		b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
	})
}

// If a row was parked again or quarantined, the ack of the router must not resolve it.
func TestTrap70AckDoesNotResolveRowParkedAgain(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.Policy = retry.Policy{Immediate: -1, Delayed: 3, Base: time.Hour, Jitter: -1}
		})
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return errHandler
		})
		kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("m1", nil)))
		b.Eventually("it is parked again", func() bool {
			entries := b.entries(parkedrows.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		if err := b.router.Close(); err != nil { // waits until the ack is processed
			t.Fatal(err)
		}
		if entries := b.entries(parkedrows.Waiting); len(entries) != 1 || calls.Load() != 1 {
			t.Fatalf("%d calls, entries %+v", calls.Load(), entries)
		}
	})
}

// If the commit of a claim succeeds, but the process does not learn of it, no crash may
// be counted. The messages must be released and claimed again long before the lease
// ends.
func TestTrap48ClaimWithUnknownOutcomeIsNoCrash(t *testing.T) {
	db := kit.Postgres(t)
	connector, err := pq.NewConnector(db.DSN)
	kit.OK(t, err)
	cut := &cutter{}
	connector.Dialer(kit.Dialer(cut.dial))
	watching := db.DB
	db.DB = sql.OpenDB(connector)
	defer db.Close()
	b := newBench(t, db, func(c *retry.Config) { c.Lease = 2 * time.Minute })
	b.put("m1", "m2", "m3")
	cut.left.Store(5)
	var calls atomic.Int32
	b.run(func(*message.Message) error {
		calls.Add(1)
		var crashes int
		err := watching.QueryRow(`SELECT max(crashes) FROM once_parked`).Scan(&crashes)
		if err != nil || crashes != 1 {
			t.Errorf("%d crashes are counted (%v), want 1 of the current claim", crashes, err)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	b.Eventually("they are handled", func() bool { return len(b.entries("")) == 0 || ctx.Err() != nil })
	if n := calls.Load(); n != 3 || ctx.Err() != nil || cut.left.Load() > 0 {
		t.Fatalf("%d were handled, %d claims were not cut", n, cut.left.Load())
	}
}

// cutter makes connections that break after a claim is committed, but before the client
// reads the result.
type cutter struct{ left atomic.Int32 }

func (c *cutter) dial(conn net.Conn) net.Conn { return &cutConn{Conn: conn, cutter: c} }

type cutConn struct {
	net.Conn

	cutter  *cutter
	claimed bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.claimed = (c.claimed || bytes.Contains(b, []byte("token = $4"))) && !bytes.Contains(b, []byte("BEGIN"))
	if !c.claimed || !bytes.Contains(b, []byte("COMMIT")) || c.cutter.left.Add(-1) < 0 {
		return c.Conn.Write(b)
	}
	_, err := c.Conn.Write(b)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return 0, errors.Join(err, c.Close(), errors.New("cut"))
}
