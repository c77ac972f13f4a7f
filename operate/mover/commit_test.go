package mover_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
)

// cutter opens connections that break when a mover commits an offset.
type cutter struct {
	after bool // the connection breaks after the server has committed, and before the client reads the result
	cuts  atomic.Int32
}

func (c *cutter) dial(conn net.Conn) net.Conn { return &cutConn{Conn: conn, cutter: c} }

type cutConn struct {
	net.Conn

	cutter   *cutter
	advanced bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.advanced = c.advanced || bytes.Contains(b, []byte("SET last_processed_transaction_id"))
	if !c.advanced || !bytes.Contains(b, []byte("COMMIT")) || c.cutter.cuts.Add(-1) < 0 {
		return c.Conn.Write(b)
	}
	if c.cutter.after {
		if _, err := c.Conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return 0, err
		}
	}
	_ = c.Close()
	return 0, errors.New("cut")
}

func TestTrap04_LostConnectionAtCommitMovesOnce(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("committed ", after), func(t *testing.T) {
			database := kit.PostgresAlone(t)
			s := withDefaults(t, database.DB)
			want := []string{}
			for i := range 10 {
				want = append(want, fmt.Sprint(i))
				s.put(t, "t", message.NewMessage(want[i], nil))
			}
			connector, err := pq.NewConnector(database.DSN)
			kit.OK(t, err)
			cut := &cutter{after: after}
			cut.cuts.Store(3)
			connector.Dialer(kit.Dialer(cut.dial))
			db := sql.OpenDB(connector)
			defer db.Close()

			m := newMover(t, db, mover.Config{BatchSize: 2})
			eventually(t, "all messages are moved", func() bool {
				kit.OK(t, kit.Err(m.Move(t.Context())))
				return len(outboxIDs(t, database.DB)) >= 10
			})
			if got := cut.cuts.Load(); got >= 0 {
				t.Fatalf("cut.cuts.Load is %d, want less than 0: connections were cut", got)
			}
			if got := outboxIDs(t, database.DB); !reflect.DeepEqual(got, want) {
				t.Fatalf("outboxIDs(database.DB) are %q, want %q", got, want)
			}
		})
	}
}

func TestRunContinuesAfterDatabaseRestart(t *testing.T) {
	kit.Long(t)
	server := kit.PrivatePostgres(t)
	db, err := sql.Open("postgres", server.DSN("postgres"))
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.OK(t, db.Close())
	})
	s := withDefaults(t, db)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := &kit.Logs{}
	m := newMover(t, db, mover.Config{Logger: log, PollInterval: time.Millisecond})
	go func() { ended <- m.Run(ctx) }()
	s.put(t, "t", message.NewMessage("before", nil))
	eventually(t, "the first message is moved", func() bool { return len(outboxIDs(t, db)) == 1 })

	server.Kill()
	eventually(t, "the failure is logged", func() bool { return log.Has("Messages cannot be moved, retrying") })
	kit.OK(t, server.Restart(context.WithoutCancel(t.Context())))
	eventually(t, "the recovery is logged", func() bool { return log.Has("Messages can be moved again") })
	s.put(t, "t", message.NewMessage("after", nil))
	eventually(t, "the second message is moved", func() bool { return len(outboxIDs(t, db)) == 2 })
	cancel()
	kit.OK(t, <-ended)
}

// An idle mover takes no lock and no transaction id. Watermill's own forwarder takes
// both at every poll.
func TestIdlePollNeitherLocksNorWrites(t *testing.T) {
	kit.Long(t)
	server := kit.PrivatePostgres(t, "autovacuum=off") // no other process of this server takes transaction ids
	db, err := sql.Open("postgres", server.DSN("postgres"))
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.OK(t, db.Close())
	})
	s := withDefaults(t, db)
	s.put(t, "t", message.NewMessage("1", nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	m := newMover(t, db, mover.Config{PollInterval: time.Millisecond})
	go func() { ended <- m.Run(ctx) }()
	eventually(t, "the first message is moved", func() bool { return len(outboxIDs(t, db)) == 1 })

	next := func() int { return count(t, db, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`) }
	reads := func() int {
		return count(t, db, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
	}
	before, readsBefore := next(), reads()
	eventually(t, "a hundred polls", func() bool { return reads() > readsBefore+200 })
	if got := next(); got != before {
		t.Fatalf("next is %d, want %d", got, before)
	}
	cancel()
	kit.OK(t, <-ended)
}
