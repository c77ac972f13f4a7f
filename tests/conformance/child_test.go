package conformance

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/local"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

const (
	consumer = "payments"
	topic    = "orders.placed"
	killer   = "killer" // the id of a message that ends the process

	crashBudget = 2
)

// life is what a consumer's process is told.
type life struct {
	Dialect   string `json:"dialect"`
	DSN       string `json:"dsn"`
	Transport string `json:"transport"` // "queue", "local" or the URL of a broker
	Queue     string `json:"queue"`     // at the broker
	Durable   bool   `json:"durable"`   // what arrives is stored first
	Fails     bool   `json:"fails"`     // the handler does, always
	Batches   string `json:"batches"`   // "" for none, or how they are handled: "each", "together"
	Ordered   bool   `json:"ordered"`   // in the order of keys; the handler fails once with the first
	StayHeld  bool   `json:"stay_held"` // the same, and what is in quarantine holds its key
	Versions  bool   `json:"versions"`  // those of m1, m2, m3 are 2, 3, 1, and are applied in order
	Dies      point  `json:"dies"`
}

const environment = "ONCE_TEST_CONSUMER"

// exitStatus is that of a handler that calls os.Exit.
const exitStatus = 7

func TestMain(m *testing.M) {
	told := os.Getenv(environment)
	if told == "" {
		_ = flag.Set("test.parallel", "4") // most of the time is spent waiting for leases to end
		testkit.Main(m)
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

// consume runs the consumer until standard input ends.
func (l life) consume() error {
	armed = l.Dies
	tables := schema.Config{Dialect: schema.Dialect(l.Dialect)}
	db, err := open(l.Dialect, l.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	config := once.ConsumerConfig{Schema: tables, Retry: retry.Config{
		Policy:      retry.Policy{Immediate: -1, Delayed: 1, Base: 5 * time.Millisecond},
		CrashBudget: crashBudget, Concurrency: 4,
		Lease: 400 * time.Millisecond, PollInterval: 5 * time.Millisecond,
	}}
	if l.Versions {
		config.Sequence = &sequence.Config{Policy: sequence.HoldForGap, First: sequence.FromOne}
	}
	config.Dedup.Batch = dedup.Batch{Size: len(messages), Wait: time.Second}
	switch {
	case l.StayHeld:
		config.Retry.KeyOrder = retry.StayHeld
	case l.Ordered:
		config.Retry.KeyOrder = retry.GoOn
	}
	if l.Durable {
		config.Durable = []string{consumer}
		config.Inbox.BatchWait = 20 * time.Millisecond // all that there are go together
	}
	c, err := once.NewConsumer(db, config)
	if err != nil {
		return err
	}
	sub, err := l.subscriber(db, tables)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
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
		transport, err := local.New(db, local.Config{Schema: tables})
		if err != nil {
			return nil, err
		}
		return transport.Subscriber(), nil
	}
	config := wamqp.NewDurableQueueConfig(l.Transport)
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.GenerateName = func(string) string { return l.Queue }
	config.Consume.Qos.PrefetchCount = 10
	if l.Durable {
		return rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	}
	return wamqp.NewSubscriber(config, watermill.NopLogger{})
}

func (l life) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	if msg.UUID == killer {
		os.Exit(exitStatus)
	}
	if l.Fails || l.Ordered && msg.UUID == messages[0] && !tried(ctx, tx, msg) {
		return nil, errors.New("the handler fails")
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

// tried says whether a message has failed before. Its row knows, whichever
// process it was.
func tried(ctx context.Context, tx *sql.Tx, msg *message.Message) bool {
	var before int
	err := tx.QueryRowContext(ctx, `SELECT attempts FROM once_parked WHERE message_id = $1`, msg.UUID).Scan(&before)
	return err != nil || before > 0
}

// process is a life under way.
type process struct {
	*exec.Cmd

	stdin io.Closer
	ended chan struct{} // closed then
}

func begin(t *testing.T, l life) *process {
	t.Helper()
	told, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.Env = append(os.Environ(), environment+"="+string(told))
	p.Stderr = os.Stderr
	if p.stdin, err = p.StdinPipe(); err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // ProcessState says how it ended
		close(p.ended)
	}()
	return p
}

// over says whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// patience is for a process on a machine that has other things to do.
const patience = time.Minute

// end waits until the process has ended.
func (p *process) end(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.Process.Kill()
		<-p.ended
		t.Fatal("the process did not end: it never came to that step")
	}
	status, _ := p.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

// stop has the process shut down.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	if status := p.end(t); status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %v", status)
	}
}
