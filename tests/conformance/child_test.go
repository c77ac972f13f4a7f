package conformance

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

const (
	consumer = "payments"
	topic    = "orders.placed"

	// Ids of messages whose handler ends the process, fails permanently, or fails at
	// each attempt.
	killer   = "killer"
	hopeless = "hopeless"
	failing  = "failing"

	crashBudget = 2
)

// life is the configuration of a consumer's process.
type life struct {
	mode

	Dialect   string        `json:"dialect"`
	DSN       string        `json:"dsn"`
	Lazy      bool          `json:"lazy"`       // PostgreSQL: lazytx is used, so BEGIN is sent with the first statement
	Transport string        `json:"transport"`  // "queue", "local" or the URL of a broker
	Queue     string        `json:"queue"`      // name of the queue, if the transport is a broker
	Gather    time.Duration `json:"gather"`     // how long a batch waits until it is full
	Pause     time.Duration `json:"pause"`      // how long a failed message waits for its next attempt
	Budget    int           `json:"budget"`     // crash budget
	Fails     bool          `json:"fails"`      // the handler always fails
	FailsOnce bool          `json:"fails_once"` // the handler fails once, for the first message of a key
	Hangs     bool          `json:"hangs"`      // the handler waits until the process shuts down, and then fails
	Dies      point         `json:"dies"`
}

const environment = "ONCE_TEST_CONSUMER"

// exitStatus is the exit status of a process whose handler calls os.Exit.
const exitStatus = 7

func TestMain(m *testing.M) {
	told := os.Getenv(environment)
	if told == "" {
		_ = flag.Set("test.parallel", "10") // most of the time the tests wait for leases to end
		kit.MainWithTables(m, kit.StockAMQP)
	}
	var l life
	err := json.Unmarshal([]byte(told), &l)
	if err == nil {
		err = l.consume()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// consume runs the consumer until the process's standard input ends.
func (l life) consume() error {
	armed = l.Dies
	tables := schema.Config{Dialect: schema.Dialect(l.Dialect)}
	db, err := l.open()
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxIdleConns(10) // otherwise opening connections takes most of the time
	config := once.ConsumerConfig{Schema: tables, Retry: retry.Config{
		Policy:      retry.Policy{Immediate: -1, Delayed: 1, Base: cmp.Or(l.Pause, 5*time.Millisecond)},
		CrashBudget: cmp.Or(l.Budget, crashBudget), Concurrency: 4, KeyOrder: l.KeyOrder,
		Lease: time.Second, PollInterval: 50 * time.Millisecond,
	}}
	switch l.Versions {
	case "newer":
		config.Sequence = &sequence.Config{}
	case "all":
		config.Sequence = &sequence.Config{Policy: sequence.HoldForGap}
	}
	if l.SQL {
		if config.Dedup.Outbox, err = sqlPublisher(tables); err != nil {
			return err
		}
	}
	config.Dedup.Batch = dedup.Batch{Size: len(messages), Wait: cmp.Or(l.Gather, 20*time.Millisecond)}
	if l.Durable {
		config.DurableConsumers = []string{consumer}
		config.Durable.BatchWait = 20 * time.Millisecond // so that one transaction stores all messages
	}
	c, err := once.NewConsumer(db, config)
	if err != nil {
		return err
	}
	sub, err := l.subscriber(db, tables)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	switch l.Batches {
	case "each":
		c.AddHandlerInBatches(router, consumer, topic, sub, l.handle)
	case "together":
		c.AddBatchHandler(router, consumer, topic, sub, l.handleAll)
	default:
		c.AddHandler(router, consumer, topic, sub, l.handle)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return router.Run(ctx)
}

// sqlPublisher returns watermill-sql's publisher for the outbox.
func sqlPublisher(tables schema.Config) (func(tx *sql.Tx) message.Publisher, error) {
	box, err := outbox.New(outbox.Config{Schema: tables})
	return func(tx *sql.Tx) message.Publisher {
		publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: box.SchemaAdapter()}, nil)
		if err != nil {
			panic(err) // the configuration is valid
		}
		return publisher
	}, err
}

func (l life) subscriber(db *sql.DB, tables schema.Config) (message.Subscriber, error) {
	switch l.Transport {
	case "queue":
		plain, err := sql.Open(l.Dialect, l.DSN)
		inFlight := 1
		if l.Durable || l.Batches != "" {
			inFlight = 10
		}
		return queue{plain, inFlight}, err
	case "local":
		transport, err := embedded.New(db, embedded.Config{Schema: tables})
		if err != nil {
			return nil, err
		}
		return transport.Subscriber(), nil
	}
	config := wamqp.NewDurableQueueConfig(l.Transport)
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.GenerateName = func(string) string { return l.Queue }
	config.Consume.Qos.PrefetchCount = 10
	if l.Stock {
		sub, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
		return passing{sub}, err
	}
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	return passing{sub}, err
}

func (l life) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	_, n := placeOf(msg.UUID)
	switch {
	case msg.UUID == killer:
		os.Exit(exitStatus)
	case l.Hangs:
		fmt.Println(hanging)
		<-parkedrows.DeliveryOf(ctx).Closing
		return nil, errFails
	case msg.UUID == hopeless:
		return nil, retry.Permanent(errFails)
	case l.Fails, msg.UUID == failing, l.FailsOnce && n == 0 && !tried(ctx, tx, msg):
		return nil, errFails
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
	return []*message.Message{once.To("payments.captured", message.NewMessage(msg.UUID+"-captured", nil))}, err
}

func (l life) handleAll(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
	var produced []*message.Message
	for _, msg := range msgs {
		more, err := l.handle(ctx, tx, msg)
		if err != nil {
			return nil, err
		}
		produced = append(produced, more...)
	}
	return produced, nil
}

// tried reports whether a message has failed before, in this process or in another one.
// Its parked row shows this.
func tried(ctx context.Context, tx *sql.Tx, msg *message.Message) bool {
	var before int
	err := tx.QueryRowContext(ctx, `SELECT attempts FROM once_parked WHERE message_id = $1`, msg.UUID).Scan(&before)
	return err != nil || before > 0
}

// process is a running process of a consumer.
type process struct {
	*exec.Cmd

	stdin   io.Closer
	hanging chan struct{}   // closed when a handler begins to hang
	ended   <-chan struct{} // closed when the process has ended
}

// hanging is the text that a process prints when its handler begins to hang.
const hanging = "hanging"

var errFails = errors.New("the handler fails")

func begin(t *testing.T, l life) *process {
	t.Helper()
	told, err := json.Marshal(l)
	kit.OK(t, err)
	p := &process{Cmd: exec.Command(kit.Program(t, "")), hanging: make(chan struct{})}
	p.Env = append(os.Environ(), environment+"="+string(told))
	p.Stdout, p.Stderr = &signal{given: p.hanging}, os.Stderr
	p.stdin, err = p.StdinPipe()
	kit.OK(t, err)
	p.ended = kit.StartChild(t, p.Cmd)
	return p
}

// signal is a writer that closes a channel at the first write.
type signal struct {
	once  sync.Once
	given chan struct{}
}

func (s *signal) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.given) })
	return len(b), nil
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// patience is how long the test waits for a process. It is long, because the machine
// may be busy.
const patience = time.Minute

// end waits until the process has ended.
func (p *process) end(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.Process.Kill()
		<-p.ended
		t.Fatal("the process did not end: it never reached the step")
	}
	status, _ := p.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

// stop shuts the process down, and waits until it has ended.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	if status := p.end(t); status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %v", status)
	}
}
