package lazytx_test

import (
	"bytes"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	pgxdriver "github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

// world is a database with outbox tables and a business table. The pool in the field db
// uses lazytx.
type world struct {
	*testing.T
	kit.Database

	connector driver.Connector // connector of the driver, without lazytx
	db        *sql.DB
	wire      *wire
}

// eachDriver runs a test with each driver that lazytx supports.
func eachDriver(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, open := range map[string]func(dsn string, w *wire) (driver.Connector, error){
		"pq": func(dsn string, w *wire) (driver.Connector, error) {
			c, err := pq.NewConnector(dsn)
			if err == nil {
				c.Dialer(kit.Dialer(w.dial))
			}
			return c, err
		},
		"pgx": func(dsn string, w *wire) (driver.Connector, error) {
			config, err := pgxdriver.ParseConfig(dsn)
			if err != nil {
				return nil, err
			}
			config.DialFunc = kit.Dialer(w.dial).DialContext
			return stdlib.GetConnector(*config), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{T: t, Database: kit.Postgres(t), wire: &wire{}}
			for _, config := range []schema.Config{{}, {Prefix: "other_"}, {Schema: "elsewhere"}} {
				kit.OK(t, schema.Up(t.Context(), w.DB, config))
			}
			w.exec(`CREATE TABLE orders (id text PRIMARY KEY)`)
			var err error
			w.connector, err = open(w.DSN, w.wire)
			kit.OK(t, err)
			w.db = w.open(lazytx.Connector(w.connector))
			test(t, w)
		})
	}
}

// open returns a pool with one connection.
func (w *world) open(c driver.Connector) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(1)
	w.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *world) exec(query string) {
	w.Helper()
	kit.Exec(w, w, query)
}

// text returns the rows of a query with one column.
func (w *world) text(query string) string {
	w.Helper()
	return column(w.T, w, query)
}

func column(t *testing.T, from kit.Querier, query string) string {
	t.Helper()
	return strings.Join(kit.Lines(t, from, query), " ")
}

// expect fails the test unless the tables contain orders and events with these ids. The
// events are in the order of their positions.
func (w *world) expect(orders, events string) {
	w.Helper()
	if got := w.text(`SELECT id FROM orders ORDER BY id`); got != orders {
		w.Errorf("orders %q, want %q", got, orders)
	}
	if got := w.text(`SELECT message_id FROM once_outbox ORDER BY position`); got != events {
		w.Errorf("events %q, want %q", got, events)
	}
}

// wait waits until a query returns the value want.
func (w *world) wait(query, want string) {
	w.Helper()
	kit.Eventually(w.T, time.Minute, query+" is "+want, func() bool { return w.text(query) == want })
}

// inTx calls f in a transaction of package outbox.
func (w *world) inTx(f func(tx *sql.Tx, events message.Publisher) error) error {
	return outbox.InTx(w.Context(), w.db, f)
}

// place inserts an order and publishes its event.
func (w *world) place(tx *sql.Tx, events message.Publisher, id string) error {
	if _, err := tx.ExecContext(w.Context(), `INSERT INTO orders VALUES ($1)`, id); err != nil {
		return err
	}
	return events.Publish("orders.placed", event(id))
}

func event(id string) *message.Message { return message.NewMessage(id, []byte(`{"of":"`+id+`"}`)) }

// wire opens connections. It records the bytes that they send, and can cut a
// connection.
type wire struct {
	mu       sync.Mutex
	messages []string
	cut      cutAt
}

// cutAt says when a connection is cut at its next COMMIT.
type cutAt int

const (
	never       cutAt = iota
	beforeThat        // the server does not get the COMMIT
	afterAnswer       // the server has answered, but the client does not get the answer
)

func (w *wire) dial(conn net.Conn) net.Conn { return &wired{Conn: conn, wire: w} }

// sent calls the function call, and returns the messages that were sent to the server
// during the call. Both drivers write once for each round trip.
func (w *wire) sent(call func()) []string {
	w.mu.Lock()
	w.messages = nil
	w.mu.Unlock()
	call()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.messages)
}

// cutNext cuts a connection at the next COMMIT.
func (w *wire) cutNext(at cutAt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = at
}

type wired struct {
	net.Conn

	wire *wire
}

func (w *wired) Write(b []byte) (int, error) {
	w.wire.mu.Lock()
	if !bytes.Contains(b, []byte("-- ping")) { // pgx's check of an idle connection
		w.wire.messages = append(w.wire.messages, string(b))
	}
	at := w.wire.cut
	if !bytes.Contains(bytes.ToUpper(b), []byte("COMMIT")) {
		at = never
	}
	if at != never {
		w.wire.cut = never
	}
	w.wire.mu.Unlock()
	switch at {
	case never:
	case beforeThat:
		_ = w.Close()
		return 0, errors.New("cut")
	case afterAnswer:
		n, err := w.Conn.Write(b)
		if err == nil {
			_, err = w.Read(make([]byte, 1)) // the server answers when it has committed
		}
		_ = w.Close()
		return n, err
	}
	return w.Conn.Write(b)
}
