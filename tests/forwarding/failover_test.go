package forwarding

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
)

// eitherServer returns the address of the one of two servers that accepts writes. lib/pq reads several
// hosts only in this form, and pgx in both.
func eitherServer(t *testing.T, all ...*servers.Postgres) string {
	t.Helper()
	hosts, ports := "", ""
	for i, server := range all {
		host, port, err := net.SplitHostPort(server.Address())
		kit.OK(t, err)
		if i > 0 {
			hosts, ports = hosts+",", ports+","
		}
		hosts, ports = hosts+host, ports+port
	}
	return fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable target_session_attrs=read-write", hosts, ports)
}

// events writes events one after another until it is stopped, also while the database is away.
type events struct {
	db    *sql.DB
	topic string

	mu        sync.Mutex
	n         int
	committed []string
}

func (e *events) write(ctx context.Context) {
	for ctx.Err() == nil {
		e.n++ // never again the same id: an unknown COMMIT may have stored the event
		id := fmt.Sprintf("event-%06d", e.n)
		err := outbox.InTx(ctx, e.db, func(_ *sql.Tx, events message.Publisher) error {
			msg := message.NewMessage(id, []byte("{}"))
			outbox.SetOrderingKey(msg, fmt.Sprint("key", e.n%keys))
			return events.Publish(e.topic, msg)
		})
		if err == nil {
			e.mu.Lock()
			e.committed = append(e.committed, id)
			e.mu.Unlock()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.committed)
}

// The primary is killed while messages flow, and its standby is promoted. Writers, forwarder and
// consumer go on at the standby. If each COMMIT waits for the standby, every event has its effect once.
// Otherwise the commits are lost that the standby does not have, and no effect is doubled: an event that
// the standby has takes effect once after it was sent again from the sent log.
func TestPromotedStandby(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	t.Run("synchronous", func(t *testing.T) { t.Parallel(); promote(t, true) })
	t.Run("asynchronous", func(t *testing.T) { t.Parallel(); promote(t, false) })
}

func promote(t *testing.T, synchronous bool) {
	t.Helper()
	primary := kit.PrivatePostgres(t)
	standby := kit.Standby(t, primary, synchronous)
	db := openDB(t, eitherServer(t, primary, standby))
	f := newFlow(t, db, kit.Rabbit(t).URL)
	cfg := quick(f.log)
	cfg.KeepSent = time.Hour
	topic, _ := f.consume(db)
	f.forward(db, toQueues(f.url), cfg)

	effects := func() (ids []string) {
		rows, err := db.QueryContext(t.Context(), `SELECT message_id FROM effects`)
		if err != nil {
			return nil
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			_ = rows.Scan(&id)
			ids = append(ids, id)
		}
		if rows.Err() != nil { // the primary was killed meanwhile
			return nil
		}
		return ids
	}
	more := func(than int) {
		f.eventually("messages take effect", func() bool { return len(effects()) >= than+30 })
	}
	writer := &events{db: db, topic: topic}
	ctx, stop := context.WithCancel(t.Context())
	stopped := kit.Go(func() error { writer.write(ctx); return nil })
	defer stop()

	more(0)
	if !synchronous { // what the primary commits from now on is lost
		standby.Kill()
		more(len(effects()))
	}
	primary.Kill()
	began := time.Now()
	if !synchronous {
		kit.OK(t, standby.Restart(t.Context()))
	}
	kit.OK(t, standby.Promote(t.Context()))
	promoted := time.Now()
	known := len(writer.all())
	f.eventually("the standby answers", func() bool { return effects() != nil })
	more(len(effects()))
	t.Logf("promoted after %v, 30 more effects after another %v", promoted.Sub(began), time.Since(promoted))
	f.eventually("the writer goes on", func() bool { return len(writer.all()) >= known+30 })
	stop()
	kit.OK(t, <-stopped)
	f.drained()

	expected := writer.all()
	if !synchronous { // the standby's events, and those after its promotion
		last := expected[known-1]
		kept := kit.Lines(t, db, `SELECT message_id FROM once_outbox_sent`)
		expected = slices.DeleteFunc(expected, func(id string) bool {
			return id <= last && !slices.Contains(kept, id)
		})
		if n := len(writer.all()); len(expected) < 60 || len(expected) == n {
			t.Errorf("the standby has %d of %d events", len(expected), n)
		}
		sent, err := dead.NewSentLog(db, operate.Config{})
		kit.OK(t, err)
		act := operate.Act{Actor: "test", Why: "failover"}
		kit.OK(t, kit.Err(sent.ReplayMatching(t.Context(), act, operate.Filter{All: true}, operate.Plan{})))
		f.drained()
	}
	missing := func() []string {
		done := effects()
		return slices.DeleteFunc(slices.Clone(expected), func(id string) bool { return slices.Contains(done, id) })
	}
	defer func() {
		if t.Failed() {
			t.Logf("without effect: %q", missing())
		}
	}()
	f.eventually("every event has its effect", func() bool { return len(missing()) == 0 })
	if n := f.count(`(SELECT message_id FROM effects GROUP BY message_id HAVING count(*) > 1) AS doubled`); n > 0 {
		t.Errorf("%d effects are doubled", n)
	}
	f.nothingCharged()
}
