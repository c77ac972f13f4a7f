package stock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wamqp3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/outbox/sqlv4"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/rabbit/amqpv3"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m, kit.StockAMQP) }

// session is a transaction with a Publisher of watermill-sql.
type session struct {
	message.Publisher

	exec     func(query string) error
	commit   func() error
	rollback func()
}

func onSQL(t *testing.T, db *sql.DB, publisher func(tx *sql.Tx) (message.Publisher, error)) session {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := publisher(tx)
	if err != nil {
		t.Fatal(err)
	}
	return session{p, func(query string) error {
		_, err := tx.ExecContext(t.Context(), query)
		return err
	}, tx.Commit, func() { _ = tx.Rollback() }}
}

func v3(tx *sql.Tx) (message.Publisher, error) {
	return wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: outbox.SchemaAdapter()}, nil)
}

func v4(tx *sql.Tx) (message.Publisher, error) {
	return wsql4.NewPublisher(wsql4.TxFromStdSQL(tx), wsql4.PublisherConfig{SchemaAdapter: sqlv4.SchemaAdapter()}, nil)
}

func onLazytx(t *testing.T, connector driver.Connector) session {
	t.Helper()
	db := sql.OpenDB(lazytx.Connector(connector))
	t.Cleanup(func() { _ = db.Close() })
	return onSQL(t, db, v4)
}

func onPgx(t *testing.T, dsn string) session {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := wsql4.NewPublisher(wsql4.TxFromPgx(tx), wsql4.PublisherConfig{SchemaAdapter: sqlv4.SchemaAdapter()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session{p, func(query string) error {
		_, err := tx.Exec(ctx, query)
		return err
	}, func() error { return tx.Commit(ctx) }, func() { _ = tx.Rollback(ctx) }}
}

// sessions contains each version of watermill-sql with each driver.
var sessions = map[string]func(t *testing.T, d kit.Database) session{
	"v3":     func(t *testing.T, d kit.Database) session { return onSQL(t, d.DB, v3) },
	"v4":     func(t *testing.T, d kit.Database) session { return onSQL(t, d.DB, v4) },
	"v4,pgx": func(t *testing.T, d kit.Database) session { return onPgx(t, d.DSN) },
	"v4,pq+lazytx": func(t *testing.T, d kit.Database) session {
		connector, err := pq.NewConnector(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return onLazytx(t, connector)
	},
	"v4,pgx+lazytx": func(t *testing.T, d kit.Database) session {
		config, err := pgx.ParseConfig(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return onLazytx(t, stdlib.GetConnector(*config))
	},
}

func newDatabase(t *testing.T) kit.Database {
	t.Helper()
	d := kit.Postgres(t)
	if err := schema.Up(t.Context(), d.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ExecContext(t.Context(), `CREATE TABLE orders (id text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return d
}

// stored is a query that returns all columns of the outbox that a message determines.
const stored = `SELECT COALESCE(string_agg(concat_ws(' ', topic, message_id, COALESCE(ordering_key, '-'), slot,
	convert_from(payload, 'UTF8'), metadata, due_at IS NOT NULL), E'\n' ORDER BY position), '') FROM once_outbox`

func text(t *testing.T, d kit.Database, query string) (s string) {
	t.Helper()
	if err := d.QueryRowContext(t.Context(), query).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// events are messages with everything that the outbox stores.
func events() []*message.Message {
	plain := message.NewMessage("plain", []byte(`{"order":42}`))
	keyed := message.NewMessage("keyed", []byte{})
	outbox.SetOrderingKey(keyed, "customer-7")
	keyed.Metadata.Set("tenant", `a "b" \ c`)
	due := message.NewMessage("due", nil)
	outbox.SetDueAt(due, time.Now().Add(time.Hour))
	late := message.NewMessage("delayed", nil)
	delay.Message(late, delay.For(time.Hour))
	late.Metadata.Set("x-death", "left out")
	return []*message.Message{plain, keyed, due, late}
}

func TestWatermillSQLsPublisherStoresTheRowsOfTheOutboxsPublisher(t *testing.T) {
	t.Parallel()
	own := newDatabase(t)
	err := outbox.InTx(t.Context(), own.DB, func(_ *sql.Tx, p message.Publisher) error {
		return p.Publish("orders.placed", events()...)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := withoutTimes(text(t, own, stored))
	for name, begin := range sessions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			for _, commits := range []bool{false, true} {
				s := begin(t, d)
				defer s.rollback()
				if err := errors.Join(s.exec(`INSERT INTO orders VALUES ('42')`),
					s.Publish("orders.placed", events()...), s.Publish("orders.placed")); err != nil {
					t.Fatal(err)
				}
				if got := text(t, d, stored); got != "" {
					t.Errorf("before the commit, the outbox has\n%s", got)
				}
				if !commits {
					s.rollback()
					continue
				}
				if err := s.commit(); err != nil {
					t.Fatal(err)
				}
			}
			if got := withoutTimes(text(t, d, stored)); got != want {
				t.Errorf("the outbox has\n%s\nwant\n%s", got, want)
			}
			if got := text(t, d, `SELECT count(*) FROM orders`); got != "1" {
				t.Errorf("%s orders, want 1", got)
			}
		})
	}
}

// withoutTimes removes the times in the metadata, which differ from call to call.
func withoutTimes(rows string) string {
	var kept []string
	for field := range strings.FieldsSeq(rows) {
		if !strings.Contains(field, "T") || !strings.Contains(field, "Z") {
			kept = append(kept, field)
		}
	}
	return strings.Join(kept, " ")
}

func TestWatermillSQLsPublisherRefusesWhatTheOutboxsPublisherRefuses(t *testing.T) {
	t.Parallel()
	many := make([]*message.Message, 101)
	for i := range many {
		many[i] = message.NewMessage(fmt.Sprint(i), nil)
	}
	contradiction := message.NewMessage("c", nil)
	outbox.SetOrderingKey(contradiction, "k")
	outbox.SetDueAt(contradiction, time.Now().Add(time.Hour))
	large := message.NewMessage("l", make([]byte, 16<<20+1))
	d := newDatabase(t)
	for name, begin := range sessions {
		t.Run(name, func(t *testing.T) {
			s := begin(t, d)
			defer s.rollback()
			for what, msg := range map[string]*message.Message{
				"no id": message.NewMessage("", nil), "NUL in the id": message.NewMessage("a\x00", nil),
				"a delayed message with a key": contradiction, "a large payload": large,
			} {
				if err := s.Publish("orders.placed", message.NewMessage("good", nil), msg); !errors.Is(err, outbox.ErrInvalid) {
					t.Errorf("%s: got %v, want ErrInvalid", what, err)
				}
			}
			want := "101 messages are too many for one statement, the limit is 100: use outbox.Publisher"
			if err := s.Publish("orders.placed", many...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("101 messages: got %v, want %q", err, want)
			}
			// The transaction still works.
			if err := errors.Join(s.Publish("orders.placed", message.NewMessage(name, nil)), s.commit()); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got, want := text(t, d, `SELECT count(*) FROM once_outbox`), fmt.Sprint(len(sessions)); got != want {
		t.Errorf("%s rows, want %s", got, want)
	}
}

func TestASubscriberOfTheOutboxFailsAtItsFirstQuery(t *testing.T) {
	t.Parallel()
	adapter := sqlv4.SchemaAdapter()
	_, selectErr := adapter.SelectQuery(wsql4.SelectQueryParams{Topic: "t"})
	_, readErr := adapter.UnmarshalMessage(wsql4.UnmarshalMessageParams{})
	for _, err := range []error{selectErr, readErr} {
		if err == nil || !strings.Contains(err.Error(), "is read by the forwarder") {
			t.Errorf("got %v, want an error that names the forwarder", err)
		}
	}
	if got, err := adapter.SchemaInitializingQueries(wsql4.SchemaInitializingQueriesParams{Topic: "t"}); len(got) != 0 || err != nil {
		t.Errorf("the adapter creates tables: %v, %v", got, err)
	}
}

// generation contains the parts of Watermill that a service used before, and the parts of this
// library that replace them.
type generation struct {
	writer     func(tx *sql.Tx) (message.Publisher, error)
	subscriber func(db *sql.DB) (stockSubscriber, error)
	publisher  func(url string) (message.Publisher, error)

	newWriter    func(tx *sql.Tx) (message.Publisher, error)
	newPublisher func(url string, cfg rabbit.PublisherConfig) (*rabbit.Publisher, error)
}

type stockSubscriber interface {
	message.Subscriber
	SubscribeInitialize(topic string) error
}

var (
	tables3 = wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: stockBatch}
	tables4 = wsql4.DefaultPostgreSQLSchema{SubscribeBatchSize: stockBatch}
)

func queue2(url string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler, config.Publish.ConfirmDelivery = rabbit.Marshaler{}, true
	return config
}

func queue3(url string) wamqp3.Config {
	config := wamqp3.NewDurableQueueConfig(url)
	config.Marshaler, config.Publish.ConfirmDelivery = rabbit.Marshaler{}, true
	return config
}

var generations = map[string]generation{
	"watermill-amqp v2, watermill-sql v3": {
		writer: func(tx *sql.Tx) (message.Publisher, error) {
			return wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: tables3}, nil)
		},
		subscriber: func(db *sql.DB) (stockSubscriber, error) {
			return wsql.NewSubscriber(db, wsql.SubscriberConfig{
				SchemaAdapter: tables3, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
				PollInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			}, nil)
		},
		publisher: func(url string) (message.Publisher, error) {
			return wamqp.NewPublisher(queue2(url), watermill.NopLogger{})
		},
		newWriter: func(tx *sql.Tx) (message.Publisher, error) { return outbox.Publisher(tx), nil },
		newPublisher: func(url string, cfg rabbit.PublisherConfig) (*rabbit.Publisher, error) {
			return rabbit.NewPublisher(queue2(url), cfg)
		},
	},
	"watermill-amqp v3, watermill-sql v4": {
		writer: func(tx *sql.Tx) (message.Publisher, error) {
			return wsql4.NewPublisher(wsql4.TxFromStdSQL(tx), wsql4.PublisherConfig{SchemaAdapter: tables4}, nil)
		},
		subscriber: func(db *sql.DB) (stockSubscriber, error) {
			return wsql4.NewSubscriber(wsql4.BeginnerFromStdSQL(db), wsql4.SubscriberConfig{
				SchemaAdapter: tables4, OffsetsAdapter: wsql4.DefaultPostgreSQLOffsetsAdapter{},
				PollInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
			}, nil)
		},
		publisher: func(url string) (message.Publisher, error) {
			return wamqp3.NewPublisher(queue3(url), watermill.NopLogger{})
		},
		newWriter: v4,
		newPublisher: func(url string, cfg rabbit.PublisherConfig) (*rabbit.Publisher, error) {
			return amqpv3.NewPublisher(queue3(url), cfg)
		},
	},
}

// The mover refuses the queue of a stock forwarder, says why, and leaves the rows.
func TestMoverRefusesAQueueOfWatermillSQL(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	publisher, err := wsql4.NewPublisher(wsql4.BeginnerFromStdSQL(d.DB), wsql4.PublisherConfig{
		SchemaAdapter: wsql4.PostgreSQLQueueSchema{}, AutoInitializeSchema: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{})
	if err := stored.Publish("orders.placed", message.NewMessage("1", nil)); err != nil {
		t.Fatal(err)
	}
	m, err := mover.New(d.DB, mover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, moveErr := m.Move(t.Context())
	_, _, leftErr := m.Left(t.Context())
	for call, err := range map[string]error{"Move": moveErr, "Left": leftErr, "Run": m.Run(t.Context())} {
		if !errors.Is(err, mover.ErrQueueTable) || !strings.Contains(err.Error(), `"watermill_forwarder_topic"`) {
			t.Errorf("%s: got %v, want ErrQueueTable and the name of the table", call, err)
		}
	}
	if got := text(t, d, `SELECT count(*) FROM "watermill_forwarder_topic" WHERE NOT acked`); got != "1" {
		t.Errorf("%s rows are in the queue, want 1", got)
	}
}
