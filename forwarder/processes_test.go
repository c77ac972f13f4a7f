package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// With these environment variables the test binary runs a forwarder instead of tests.
const (
	processDSN   = "ONCE_TEST_FORWARDER_DSN"
	processAMQP  = "ONCE_TEST_FORWARDER_AMQP"
	processLease = 2 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(processDSN) == "" {
		kit.MainWithTables(m)
	}
	if err := beForwarder(os.Getenv(processDSN), os.Getenv(processAMQP)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// beForwarder runs a forwarder until standard input ends.
func beForwarder(dsn, broker string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return err
	}
	publisher, err := rabbit.NewPublisher(amqp.NewDurablePubSubConfig(broker, nil), rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	f, err := forwarder.New(db, publisher, forwarder.Config{Lease: processLease, PollMax: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

// process is a forwarder that runs in another process.
type process struct {
	*osexec.Cmd

	stdin io.Closer
	ended <-chan struct{} // closed when the process has ended
}

func startProcess(t *testing.T, db kit.Database, broker string) *process {
	t.Helper()
	command := osexec.Command(os.Args[0])
	command.Env = append(os.Environ(), processDSN+"="+db.DSN, processAMQP+"="+broker)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	kit.OK(t, err)
	return &process{Cmd: command, stdin: stdin, ended: kit.StartChild(t, command)}
}

func (p *process) kill() {
	_ = p.Process.Kill() // the process may have ended
	<-p.ended
}

// stream writes messages with several keys until it is stopped.
type stream struct {
	stop chan struct{}
	done chan error
	n    int
}

const streamKeys = 30

func startStream(t *testing.T, db *sql.DB, topic string) *stream {
	t.Helper()
	s := &stream{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		for {
			select {
			case <-s.stop:
				s.done <- nil
				return
			case <-time.After(5 * time.Millisecond):
			}
			var msgs []*message.Message
			for key := range streamKeys {
				msgs = append(msgs, msg(fmt.Sprintf("%d/%d", key, s.n), fmt.Sprint("key", key)))
			}
			err := outbox.InTx(context.Background(), db, func(_ *sql.Tx, events message.Publisher) error {
				return events.Publish(topic, msgs...)
			})
			if err != nil {
				s.done <- err
				return
			}
			s.n++
		}
	}()
	return s
}

// end stops the stream and waits until all its messages have left the outbox.
func (s *stream) end(t *testing.T, db *sql.DB) {
	t.Helper()
	close(s.stop)
	kit.OK(t, <-s.done)
	drained(t, db)
}

// verify reads the queue. All messages must be there, and the first copies of the
// messages of each key must be in order. It returns the number of duplicates.
func (s *stream) verify(t *testing.T, channel *amqp091.Channel, queue string) (duplicates int) {
	t.Helper()
	next := map[string]int{}
	for missing := s.n * streamKeys; missing > 0; {
		d, ok, err := channel.Get(queue, true)
		kit.OK(t, err)
		if !ok {
			t.Fatalf("%d messages are lost", missing)
		}
		id, _ := d.Headers["_watermill_message_uuid"].(string)
		key, number, _ := strings.Cut(id, "/")
		n, err := strconv.Atoi(number)
		kit.OK(t, err)
		switch {
		case n < next[key]:
			duplicates++
		default:
			if n != next[key] {
				t.Fatalf("key %s: n is %d, want %d", key, n, next[key])
			}
			next[key]++
			missing--
		}
	}
	return duplicates
}

// Trap 18. A process that is suspended for longer than its lease, and a process that is
// killed, must be replaced in time. When the suspended process continues, it must send
// nothing out of order.
func TestTrap18_ProcessesThatAreFrozenOrKilled(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	conn, err := amqp091.Dial(broker.URL)
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
	topic := broker.Name("stream")
	kit.OK(t, kit.Err(channel.QueueDeclare(topic, true, false, false, false, nil)))
	kit.OK(t, channel.ExchangeDeclare(topic, "fanout", true, false, false, false, nil))
	kit.OK(t, channel.QueueBind(topic, "", topic, false, nil))
	t.Cleanup(func() { // needed if the broker has no virtual host for each test
		cleaner, err := amqp091.Dial(broker.URL)
		kit.OK(t, err)
		defer cleaner.Close()
		channel, err := cleaner.Channel()
		kit.OK(t, err)
		_, _ = channel.QueueDelete(topic, false, false, false)
		_ = channel.ExchangeDelete(topic, false, false)
	})

	stream := startStream(t, db.DB, topic)
	one, two := startProcess(t, db, broker.URL), startProcess(t, db, broker.URL)
	for range 2 {
		shares(t, db.DB, 32, 32)
		kit.OK(t, one.Process.Signal(syscall.SIGSTOP))
		frozen := time.Now()
		shares(t, db.DB, 64)
		if got := time.Since(frozen); got >= processLease+2*time.Second+slack {
			t.Fatalf("time.Since(frozen) is %v, want less than %v", got, processLease+2*time.Second+slack)
		}
		giveTime(processLease / 2) // so that the other process continues to send
		kit.OK(t, one.Process.Signal(syscall.SIGCONT))
	}
	shares(t, db.DB, 32, 32)
	two.kill()
	killed := time.Now()
	shares(t, db.DB, 64)
	if got := time.Since(killed); got >= processLease+2*time.Second+slack {
		t.Fatalf("time.Since(killed) is %v, want less than %v", got, processLease+2*time.Second+slack)
	}

	stream.end(t, db.DB)
	t.Logf("%d messages, %d duplicates", stream.n*streamKeys, stream.verify(t, channel, topic))
	kit.OK(t, one.stdin.Close())
	if <-one.ended; !one.ProcessState.Success() {
		t.Fatal(one.ProcessState)
	}
	if got := slotsOf(t, db.DB); len(got) != 0 {
		t.Fatalf("slotsOf(db.DB) is %v, want none: what it had is given back", got)
	}
}
