package pgxoutbox

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/pgxoutbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// bench is a database with an outbox and a business table, and a pool of pgx.
type bench struct {
	*kit.Bench

	pool  *pgxpool.Pool
	trips atomic.Int64 // requests that the pool's connections have sent

	stopDialing atomic.Bool // no connection can be opened
}

func newBench(t *testing.T, change func(*pgxpool.Config)) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, kit.Postgres(t), schema.Config{})}
	b.Exec(`CREATE TABLE orders (id text PRIMARY KEY)`)
	config, err := pgxpool.ParseConfig(b.DSN)
	kit.OK(t, err)
	config.MaxConns = 2
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if b.stopDialing.Load() {
			return nil, errors.New("no connection can be opened")
		}
		conn, err := dial(ctx, network, address)
		return &counted{Conn: conn, trips: &b.trips}, err
	}
	if change != nil {
		change(config)
	}
	b.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	kit.OK(t, err)
	t.Cleanup(b.pool.Close)
	return b
}

// counted counts the writes of a connection. pgx writes once for each round trip.
type counted struct {
	net.Conn

	trips *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.trips.Add(1)
	return c.Conn.Write(b)
}

// text returns the rows of a query with one column.
func (b *bench) text(query string) string {
	b.Helper()
	return strings.Join(kit.Lines(b, b, query), " ")
}

// expect checks the ids of the orders, sorted, and the ids of the events, in the order
// of their positions.
func (b *bench) expect(orders, events string) {
	b.Helper()
	if got := b.text(`SELECT id FROM orders ORDER BY id`); got != orders {
		b.Errorf("orders %q, want %q", got, orders)
	}
	if got := b.text(`SELECT message_id FROM once_outbox ORDER BY position`); got != events {
		b.Errorf("events %q, want %q", got, events)
	}
}

func event(id string) *message.Message { return message.NewMessage(id, []byte(`{"of":"`+id+`"}`)) }

// place inserts an order and publishes its event.
func place(ctx context.Context, tx pgx.Tx, events message.Publisher, id string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
		return err
	}
	return events.Publish("orders.placed", event(id))
}

func (b *bench) inTx(work func(tx pgx.Tx, events message.Publisher) error) error {
	return pgxoutbox.InTx(b.Context(), b.pool, work)
}

var errWork = errors.New("work failed")
