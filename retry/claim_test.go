package retry_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// If the commit of a claim succeeds, but the process does not learn of it, no crash may
// be counted. The messages must be released and claimed again long before the lease
// ends.
func TestTrap48ClaimWithUnknownOutcomeIsNoCrash(t *testing.T) {
	db := testkit.Postgres(t)
	connector, err := pq.NewConnector(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	cut := &cutter{}
	connector.Dialer(cut)
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
	b.eventually("they are handled", func() bool { return len(b.entries("")) == 0 || ctx.Err() != nil })
	if n := calls.Load(); n != 3 || ctx.Err() != nil || cut.left.Load() > 0 {
		t.Fatalf("%d were handled, %d claims were not cut", n, cut.left.Load())
	}
}

// cutter makes connections that break after a claim is committed, but before the client
// reads the result.
type cutter struct{ left atomic.Int32 }

func (c *cutter) Dial(network, address string) (net.Conn, error) {
	return c.DialTimeout(network, address, 0)
}

func (c *cutter) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, timeout)
	return &cutConn{Conn: conn, cutter: c}, err
}

func (c *cutter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &cutConn{Conn: conn, cutter: c}, err
}

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
