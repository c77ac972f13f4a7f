package forwarding

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
)

// consume adds a consumer of a new queue. The consumer writes its effects to the table
// effects. It fails for messages whose id begins with "hopeless".
func (f *flow) consume(db *sql.DB) (topic string, entries *quarantine.Entries) {
	f.Helper()
	f.exec(`CREATE TABLE effects (message_id text)`)
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Logger: f.log,
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 2, Base: 20 * time.Millisecond},
			PollInterval: 20 * time.Millisecond,
		},
	})
	must(f.T, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	must(f.T, err)
	subscriber, err := wamqp.NewSubscriber(toQueues(f.url), watermill.NopLogger{})
	must(f.T, err)
	topic = kit.Broker{}.Name("consumed")
	must(f.T, subscriber.SubscribeInitialize(topic))
	consumer.AddHandler(router, "consumer", topic, subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if strings.HasPrefix(msg.UUID, "hopeless") {
				return nil, errors.New("no")
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, msg.UUID)
			return nil, err
		})
	ended := kit.Go(func() error { return router.Run(context.WithoutCancel(f.Context())) })
	<-router.Running()
	f.Cleanup(func() {
		must(f.T, router.Close())
		must(f.T, <-ended)
	})
	return topic, consumer.Quarantine()
}

// Trap 61. Every statement with parameters is executed in a transaction. Such a statement takes two
// round trips, so behind a pooler a statement of another client could run in between if no
// transaction were open. The test watches the protocol.
func TestEveryStatementIsInATransaction(t *testing.T) {
	t.Parallel()
	t.Run("pq", func(t *testing.T) { everyStatementIsInATransaction(t, openDB) })
	t.Run("lazytx", func(t *testing.T) { everyStatementIsInATransaction(t, openLazily) })
}

func everyStatementIsInATransaction(t *testing.T, openDB func(t *testing.T, dsn string) *sql.DB) {
	t.Helper()
	database := kit.Postgres(t)
	f := newFlow(t, database.DB, kit.Rabbit(t).URL)
	address, p := through(t, database.DSN, func(server string) *proxy { return newProxy(t, server, postgresMessage) })
	var outside sync.Map
	var inside atomic.Int64
	open := map[net.Conn]bool{}
	p.cut(func(m relayed) action {
		switch {
		case !m.toServer && m.bytes[0] == 'Z': // ReadyForQuery contains the transaction status
			open[m.conn] = m.bytes[5] != 'I'
		case m.toServer && m.bytes[0] == 'P' && open[m.conn]:
			inside.Add(1)
		case m.toServer && m.bytes[0] == 'P':
			outside.Store(string(m.bytes), true)
		}
		return pass
	})

	db := openDB(t, address)
	forward := f.forward(db, toQueues(f.url), quick(f.log))
	topic, entries := f.consume(db)
	write := func(topic string, messages ...*message.Message) {
		must(t, outbox.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish(topic, messages...)
		}))
	}
	write(topic, message.NewMessage("fine", nil), message.NewMessage("hopeless", nil))
	write("no such queue", keyed("refused", "key"))
	f.exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('dead', repeat('x', 300), 0, '', '{}')`)
	f.eventually("all messages have reached their final state", func() bool {
		return f.count(`effects`) == 1 && f.count(`once_parked WHERE state = 'quarantined'`) == 1 && f.count(`charged`) > 2 &&
			f.count(`once_outbox_dead`) == 1
	})
	page, err := entries.List(t.Context(), operate.Filter{Consumer: "consumer"})
	must(t, err)
	must(t, entries.Replay(t.Context(), operate.Act{Actor: "test", Why: "test"}, page.Rows[0].ID))
	f.eventually("the replayed message fails again", func() bool { return f.count(`once_parked WHERE state = 'quarantined'`) == 1 })
	must(t, entries.Discard(t.Context(), operate.Act{Actor: "test", Why: "test"}, page.Rows[0].ID))
	must(t, forward.Close())

	outside.Range(func(statement, _ any) bool {
		t.Errorf("outside of a transaction: %q", statement)
		return true
	})
	if n := inside.Load(); n < 20 {
		t.Errorf("only %d statements with parameters were seen", n)
	}
}

// Trap 26. Writers, two forwarders, a consumer and other clients share three connections through a
// pooler in transaction mode. All messages arrive, and each consumed message takes effect once.
func TestForwarderBehindAPooler(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t)
	pooler := kit.PrivatePgbouncer(t, server, "default_pool_size = 3")
	f := newFlow(t, openDB(t, server.DSN("postgres")), kit.Rabbit(t).URL)
	f.exec(`CREATE TABLE neighbours (n int)`)
	pooled := func() *sql.DB { return openDB(t, pooler.DSN("postgres")) }
	for range 2 {
		f.forward(pooled(), toQueues(f.url), quick(f.log))
	}
	consumed, _ := f.consume(openLazily(t, pooler.DSN("postgres")))
	direct := f.db
	f.db = pooled() // the writers also use the pooler

	// These are other clients of the pooler. Three use transactions, and one does not. The client
	// without transactions gets replies for other clients, which shows that this pooler requires
	// transactions.
	var working sync.WaitGroup
	var stop atomic.Bool
	var wrote, mixed atomic.Int64
	for range 3 {
		db := pooled()
		working.Go(func() {
			for !stop.Load() {
				if err := outbox.InTx(context.Background(), db, func(tx *sql.Tx, _ message.Publisher) error {
					n := 0
					if err := tx.QueryRow(`SELECT $1::int + 1`, 41).Scan(&n); err != nil || n != 42 {
						return fmt.Errorf("%d, %w", n, err)
					}
					_, err := tx.Exec(`INSERT INTO neighbours VALUES ($1)`, n)
					return err
				}); err != nil {
					t.Errorf("another client: %v", err)
					return
				}
				wrote.Add(1)
				<-time.After(time.Millisecond)
			}
		})
	}
	careless := pooled()
	working.Go(func() {
		for !stop.Load() {
			n := 0
			if err := careless.QueryRow(`SELECT $1::int`, 7).Scan(&n); err != nil || n != 7 {
				mixed.Add(1)
			}
		}
	})
	effects := 0
	f.during(func() {
		f.eventually("the client without transactions gets replies for other clients", func() bool {
			must(t, f.tryPublish(consumed, message.NewMessage(fmt.Sprint("effect", effects), nil)))
			effects++
			return mixed.Load() > 20 && effects > 50
		})
	})
	stop.Store(true)
	working.Wait()
	f.complete()
	f.eventually("all effects exist", func() bool { return f.count(`effects`) >= effects })
	f.db = direct
	if n := f.count(`effects`); n != effects {
		t.Errorf("%d effects of %d messages", n, effects)
	}
	if n := f.count(`neighbours`); n != int(wrote.Load()) {
		t.Errorf("the other clients have %d rows, want %d", n, wrote.Load())
	}
	if n := f.count(`once_parked`); n != 0 {
		t.Errorf("%d messages were parked", n)
	}
	if n := f.count(`pg_locks WHERE locktype = 'advisory'`); n != 0 {
		t.Errorf("%d session locks are left", n)
	}
	f.silent()
	t.Logf("%d messages, %d effects, the careless neighbour was mixed up %d times", f.sent, effects, mixed.Load())
}
