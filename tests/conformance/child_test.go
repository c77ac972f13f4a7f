package conformance

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
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
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/local"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
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
	Fails     bool   `json:"fails"`     // the handler does, always
	Dies      point  `json:"dies"`
}

const environment = "ONCE_TEST_CONSUMER"

// exitStatus is that of a handler that calls os.Exit.
const exitStatus = 7

func TestMain(m *testing.M) {
	told := os.Getenv(environment)
	if told == "" {
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
	c, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables, Retry: retry.Config{
		Policy:      retry.Policy{Immediate: -1, Delayed: 1, Base: 5 * time.Millisecond},
		CrashBudget: crashBudget, Concurrency: 4,
		Lease: 400 * time.Millisecond, PollInterval: 5 * time.Millisecond,
	}})
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
	c.AddHandler(router, consumer, topic, sub, l.handle)
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
		return queue{plain}, err
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
	return wamqp.NewSubscriber(config, watermill.NopLogger{})
}

func (l life) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	if msg.UUID == killer {
		os.Exit(exitStatus)
	}
	if l.Fails {
		return nil, errors.New("the handler fails")
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ($1)`, msg.UUID)
	return []*message.Message{once.To("payments.captured", message.NewMessage(msg.UUID+"-captured", nil))}, err
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
