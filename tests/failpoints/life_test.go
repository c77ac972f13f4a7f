package failpoints

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// life is the configuration of a process that contains a writer, a forwarder and
// consumers with all middlewares.
type life struct {
	Dialect string `json:"dialect"`
	DSN     string `json:"dsn"`
	AMQP    string `json:"amqp"` // "" means the embedded transport
	Prefix  string `json:"prefix"`

	Writes   []string `json:"writes"`   // ids of the messages to write, in this order
	Keyed    bool     `json:"keyed"`    // all of them have the same ordering key
	Versions bool     `json:"versions"` // they have the versions 2, 3, 1 of one aggregate

	NoConsumer  bool `json:"no_consumer"`  // no consumer has ever subscribed
	MaxAttempts int  `json:"max_attempts"` // MaxAttempts of the forwarder
	Moves       bool `json:"moves"`        // the process moves messages from the stock table

	Durable  bool   `json:"durable"`   // the consumer is durable, and keeps handled rows for a while
	Batches  bool   `json:"batches"`   // handlers share transactions
	Fails    int    `json:"fails"`     // number of failed attempts of each order
	FailsFor string `json:"fails_for"` // only this order fails; "" means all
	Exits    string `json:"exits"`     // id of the message whose handler ends the process
	Stops    bool   `json:"stops"`     // the process is told to end while it handles an order
	Blocks   bool   `json:"blocks"`    // the handler of a redelivered message runs until the process shuts down
	Outage   bool   `json:"outage"`    // calls of the consumer with a breaker fail, until a probe has failed

	Limited bool `json:"limited"` // the consumer has a limit

	Frozen bool `json:"frozen"` // one of two processes is stopped for some time; timeouts are short

	Operate string `json:"operate"` // operation that an operator runs meanwhile
	Export  string `json:"export"`  // export that is imported
}

// always is a number of failures that is higher than the number of attempts.
const always = 1000

const (
	environment = "ONCE_TEST_LIFE"

	exitStatus = 7 // of a process whose handler ends it
)

func TestMain(m *testing.M) {
	told := os.Getenv(environment)
	if told == "" {
		_ = flag.Set("test.parallel", "8") // most of the time the tests wait for leases to end
		kit.MainWithTables(m)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // standard error must contain only the failpoint that was reached
	var l life
	err := json.Unmarshal([]byte(told), &l)
	if err == nil {
		err = l.live()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (l life) schema() schema.Config { return schema.Config{Dialect: schema.Dialect(l.Dialect)} }

// actor contains the parts of a running process.
type actor struct {
	life

	db        *sql.DB
	transport *embedded.Transport // set only if the embedded transport is used
	stop      context.CancelFunc
	calls     atomic.Int32 // during an outage
}

// live runs all parts of the process until its standard input ends.
func (l life) live() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	db, err := l.open()
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(6) // otherwise opening connections takes most of the time
	if l.Frozen {
		db.SetMaxOpenConns(4) // two processes run at the same time
	}
	a := &actor{life: l, db: db, stop: cancel}
	if l.AMQP == "" {
		if a.transport, err = embedded.New(db, embedded.Config{Schema: l.schema()}); err != nil {
			return err
		}
	}

	var (
		running sync.WaitGroup
		mu      sync.Mutex
		errs    []error
	)
	start := func(part func(ctx context.Context) error) {
		running.Go(func() {
			err := part(ctx)
			if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			cancel()
		})
	}
	if err := a.consume(ctx, start); err != nil {
		return err
	}
	fwd, err := a.forward(start)
	if err != nil {
		return err
	}
	if l.Moves {
		start(func(ctx context.Context) error {
			m, err := mover.New(db, mover.Config{PollInterval: 20 * time.Millisecond})
			if err != nil {
				return err
			}
			return m.Run(ctx)
		})
	}
	start(func(ctx context.Context) error {
		err := a.write(ctx, fwd.Hint)
		for a.Frozen && err != nil && ctx.Err() == nil { // the server has ended the transaction while the process was stopped
			err = a.write(ctx, fwd.Hint)
		}
		if ctx.Err() == nil {
			return err
		}
		return nil // lib/pq returns ErrBadConn if the session has ended between two statements
	})
	start(a.operate)
	running.Wait()
	return errors.Join(errs...)
}

func (l life) open() (*sql.DB, error) {
	if l.Dialect != "postgres" {
		return sql.Open(l.Dialect, l.DSN)
	}
	connector, err := pq.NewConnector(l.DSN)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(kit.Patient(connector)), nil // other tests may have all connections of the server
}

// exchanges returns the configuration of the publisher and the subscriber.
func (l life) exchanges() wamqp.Config {
	named := func(topic string) string { return l.Prefix + "." + topic }
	config := wamqp.NewDurablePubSubConfig(l.AMQP, named)
	config.Exchange.GenerateName = named
	config.Marshaler = rabbit.Marshaler{}
	if l.Frozen {
		config.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 3 * time.Second}
	}
	return config
}

func (a *actor) forward(start func(func(ctx context.Context) error)) (*forwarder.Forwarder, error) {
	var publisher message.Publisher = a.transport
	if a.transport == nil {
		var err error
		publisher, err = rabbit.NewPublisher(a.exchanges(), rabbit.PublisherConfig{CloseTimeout: 2 * time.Second})
		if err != nil {
			return nil, err
		}
	}
	config := forwarder.Config{
		Schema: a.schema(), KeepSent: time.Hour, MaxAttempts: cmp.Or(a.MaxAttempts, 1000), AfterDead: forwarder.BlockKey,
		Lease: lease, PollMax: 50 * time.Millisecond, CloseTimeout: 5 * time.Second,
		Backoff: func(int) time.Duration { return 50 * time.Millisecond },
	}
	fwd, err := forwarder.New(a.db, publisher, config)
	if err != nil {
		return nil, err
	}
	start(func(ctx context.Context) error { return errors.Join(fwd.Run(ctx), publisher.Close()) })
	return fwd, nil
}

var errRolledBack = errors.New("rolled back on purpose")

// write commits each message together with its order, unless they were committed before. So write
// can be repeated. After each message it also rolls back a transaction.
func (a *actor) write(ctx context.Context, hint func()) error {
	box, err := outbox.New(outbox.Config{Schema: a.schema()})
	if err != nil {
		return err
	}
	for n, id := range a.Writes {
		if a.Versions && n == len(a.Writes)-1 {
			if err := a.untilEarly(ctx, id, n); err != nil {
				return err
			}
		}
		err := box.InTx(ctx, a.db, func(tx *sql.Tx, events message.Publisher) error {
			if err := a.bound(ctx, tx); err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
			if err != nil {
				return err
			}
			if fresh, err := result.RowsAffected(); err != nil || fresh == 0 {
				return err
			}
			return events.Publish(orders, a.message(n, id))
		}, hint)
		if err != nil {
			return err
		}
		undone := "undone-" + id
		err = box.InTx(ctx, a.db, func(tx *sql.Tx, events message.Publisher) error {
			if err := a.bound(ctx, tx); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, undone); err != nil {
				return err
			}
			return errors.Join(events.Publish(orders, message.NewMessage(undone, nil)), errRolledBack)
		}, hint)
		if !errors.Is(err, errRolledBack) {
			return err
		}
	}
	return nil
}

// untilEarly waits until the other messages are parked because they are early, unless the message
// with version 1 was committed before. Otherwise version 1 could be handled first, for example if
// sending the others failed at first.
func (a *actor) untilEarly(ctx context.Context, first string, others int) error {
	return a.wait(ctx, `SELECT CASE WHEN EXISTS (SELECT 1 FROM orders WHERE id = $1) THEN `+strconv.Itoa(others)+`
		ELSE (SELECT COUNT(*) FROM once_parked WHERE early_of IS NOT NULL) END`, first, others, 1)
}

// bound sets a timeout for a transaction of the service. If the process is stopped in
// the transaction, the server ends the transaction after this timeout.
func (a *actor) bound(ctx context.Context, tx *sql.Tx) error {
	if !a.Frozen {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = 5000`)
	return err
}

func (l life) message(n int, id string) *message.Message {
	msg := message.NewMessage(id, []byte("body of "+id))
	if l.Keyed {
		outbox.SetOrderingKey(msg, key)
	}
	if l.Versions {
		outbox.SetAggregate(msg, "order", "17", int64((n+1)%len(l.Writes)+1))
	}
	return msg
}

// nopLogger is the logger of the routers.
var nopLogger = watermill.NopLogger{}
