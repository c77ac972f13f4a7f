package mover_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/mover"
)

// cutter opens connections that break when a mover commits an offset.
type cutter struct {
	net.Dialer

	after bool // the connection breaks after the server's commit, before the client reads the result
	cuts  atomic.Int32
}

func (c *cutter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.Dialer.DialContext(ctx, network, address)
	return &cutConn{Conn: conn, cutter: c}, err
}

func (c *cutter) Dial(network, address string) (net.Conn, error) {
	return c.DialContext(context.Background(), network, address)
}

func (c *cutter) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return c.Dial(network, address)
}

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
			database := testkit.PostgresAlone(t)
			s := withDefaults(t, database.DB)
			want := []string{}
			for i := range 10 {
				want = append(want, fmt.Sprint(i))
				s.put(t, "t", message.NewMessage(want[i], nil))
			}
			connector, err := pq.NewConnector(database.DSN)
			require.NoError(t, err)
			cut := &cutter{after: after}
			cut.cuts.Store(3)
			connector.Dialer(cut)
			db := sql.OpenDB(connector)
			defer db.Close()

			m := newMover(t, db, mover.Config{BatchSize: 2})
			eventually(t, "all messages are moved", func() bool {
				_, err := m.Move(t.Context())
				require.NoError(t, err)
				return len(outboxIDs(t, database.DB)) >= 10
			})
			require.Negative(t, cut.cuts.Load(), "connections were cut")
			require.Equal(t, want, outboxIDs(t, database.DB))
		})
	}
}

func TestRunContinuesAfterDatabaseRestart(t *testing.T) {
	testkit.Long(t)
	server := testkit.PrivatePostgres(t)
	db, err := sql.Open("postgres", server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s := withDefaults(t, db)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := &testkit.Logs{}
	m := newMover(t, db, mover.Config{Logger: log, PollInterval: time.Millisecond})
	go func() { ended <- m.Run(ctx) }()
	s.put(t, "t", message.NewMessage("before", nil))
	eventually(t, "the first message is moved", func() bool { return len(outboxIDs(t, db)) == 1 })

	server.Kill()
	eventually(t, "the failure is logged", func() bool { return log.Has("Messages cannot be moved, retrying") })
	require.NoError(t, server.Restart(context.WithoutCancel(t.Context())))
	eventually(t, "the recovery is logged", func() bool { return log.Has("Messages can be moved again") })
	s.put(t, "t", message.NewMessage("after", nil))
	eventually(t, "the second message is moved", func() bool { return len(outboxIDs(t, db)) == 2 })
	cancel()
	require.NoError(t, <-ended)
}

// An idle mover takes no lock and no transaction id. The stock forwarder takes both at
// every poll.
func TestIdlePollNeitherLocksNorWrites(t *testing.T) {
	server := testkit.PrivatePostgres(t, "autovacuum=off") // no other process of this server takes transaction ids
	db, err := sql.Open("postgres", server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
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
	require.Equal(t, before, next())
	cancel()
	require.NoError(t, <-ended)
}
