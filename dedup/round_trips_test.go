package dedup_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
)

// counting counts the writes of its connections. lib/pq writes once for each round trip.
type counting struct {
	net.Dialer

	writes atomic.Int64
}

func (c *counting) Dial(network, address string) (net.Conn, error) {
	return c.DialContext(context.Background(), network, address)
}

func (c *counting) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.DialContext(ctx, network, address)
}

func (c *counting) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, &c.writes}, nil
}

type countedConn struct {
	net.Conn

	writes *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// The check of a transaction before its commit costs a round trip. The first hundred
// transactions are checked, and then one in 32.
func TestOneTransactionIn32PaysForItsCheck(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	connector, err := pq.NewConnector(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	trips := &counting{}
	connector.Dialer(trips)
	db.DB = sql.OpenDB(connector)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	db.SetMaxOpenConns(1)
	b := newBench(t, db, nil)
	handle := func(from, to int) int64 {
		before := trips.writes.Load()
		for n := from; n < to; n++ {
			if _, err := b.inbox.Middleware(apply)(message.NewMessage(fmt.Sprint("m", n), nil)); err != nil {
				t.Fatal(err)
			}
		}
		return trips.writes.Load() - before
	}
	handle(0, 32) // in the beginning there is more to do
	checked := handle(32, 96)
	handle(96, 128)
	if later := handle(128, 192); checked-later != 62 {
		t.Errorf("64 messages take %d round trips, and later %d: want a difference of 62", checked, later)
	}
}

// A handler that has ended its transaction once probably does so again. Then all
// transactions are checked. lib/pq notices ROLLBACK itself, also in a transaction
// without a check; pgx does not.
func TestAllTransactionsAreCheckedAfterOneThatItsHandlerEnded(t *testing.T) {
	t.Parallel()
	type ending struct {
		statement string
		checked   bool
	}
	endings := map[string]ending{"found by the check": {`ROLLBACK AND CHAIN`, true}}
	if fmt.Sprintf("%T", testkit.Postgres(t).Driver()) == "*pq.Driver" {
		endings["found by the driver"] = ending{`ROLLBACK`, false}
	}
	for name, c := range endings {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, testkit.Postgres(t), nil)
			n := 0
			handle := func(statement string) error {
				n++
				_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					tx, _ := dedup.TxFromContext(msg.Context())
					_, err := tx.ExecContext(msg.Context(), statement)
					return nil, err
				})(message.NewMessage(fmt.Sprint("m", n), nil))
				return err
			}
			const harmless = `INSERT INTO effects (message_id) VALUES ('m')`
			for n < 130 || c.checked && n < 159 {
				if err := handle(harmless); err != nil {
					t.Fatal(err)
				}
			}
			if err := handle(c.statement); err == nil {
				t.Fatalf("message %d: the transaction has ended, and there is no error", n)
			}
			if err := handle(`ROLLBACK AND CHAIN`); err == nil {
				t.Errorf("message %d: the transaction was not checked", n)
			}
		})
	}
}
