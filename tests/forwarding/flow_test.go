package forwarding

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// flow is a path from an outbox to a broker with one or more queues.
type flow struct {
	*testing.T

	db    *sql.DB // the pool that the test itself uses
	url   string  // URL of the broker that the test itself uses
	queue string
	log   *kit.Logs
	sent  int // number of messages that put has committed
}

// newFlow creates the tables, and a classic queue. It does not use a quorum queue: if
// RabbitMQ 3.10 is killed in the first seconds of a quorum queue, the queue sometimes
// never gets a leader again.
func newFlow(t *testing.T, db *sql.DB, url string) *flow {
	t.Helper()
	f := &flow{T: t, db: db, url: url, log: &kit.Logs{}, queue: kit.Broker{}.Name("q")}
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	channel := f.admin()
	kit.OK(t, kit.Err(channel.QueueDeclare(f.queue, true, false, false, false, nil)))
	f.watchCharges()
	return f
}

// watchCharges makes the database record every attempt that is counted. Otherwise the
// count would be lost when the row of a delivered message is deleted.
func (f *flow) watchCharges() {
	f.Helper()
	f.exec(`CREATE TABLE charged (message_id text, attempts int, error text)`)
	f.exec(`CREATE FUNCTION note_charge() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO charged VALUES (NEW.message_id, NEW.attempts, NEW.last_error); RETURN NEW; END $$`)
	f.exec(`CREATE TRIGGER note_charge AFTER UPDATE ON once_outbox FOR EACH ROW
		WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION note_charge()`)
}

// admin returns a channel on a separate connection.
func (f *flow) admin() *amqp.Channel {
	f.Helper()
	conn, err := amqp.Dial(f.url)
	kit.OK(f, err)
	f.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(f, err)
	return channel
}

func (f *flow) exec(query string, args ...any) {
	f.Helper()
	kit.Exec(f, f.db, query, args...)
}

// count returns the number of rows, or -1 if the database does not answer.
func (f *flow) count(what string) int {
	var n int
	if err := f.db.QueryRowContext(f.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n); err != nil {
		return -1
	}
	return n
}

func (f *flow) eventually(what string, cond func() bool) {
	f.Helper()
	defer func() {
		if f.Failed() {
			f.Logf("the log:\n%s", strings.Join(f.log.Lines(), "\n"))
		}
	}()
	kit.Eventually(f.T, 2*time.Minute, what, cond)
}

// openDB opens another pool.
func openDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	connector, err := kit.Connector(dsn)
	kit.OK(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// openLazily is like openDB, but uses lazytx: BEGIN is sent with the first statement.
func openLazily(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	connector, err := kit.Connector(dsn)
	kit.OK(t, err)
	db := sql.OpenDB(lazytx.Connector(connector))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// soon limits the pauses between attempts to connect to short ones.
var soon = &wamqp.ReconnectConfig{BackoffInitialInterval: 10 * time.Millisecond, BackoffMaxInterval: 200 * time.Millisecond}

// impatient returns a publisher configuration with short intervals.
func impatient(log *kit.Logs) rabbit.PublisherConfig {
	return rabbit.PublisherConfig{
		ConfirmTimeout: 5 * time.Second, // long enough that a busy broker causes no duplicates
		ReadyTimeout:   200 * time.Millisecond,
		DialTimeout:    10 * time.Second,
		WriteTimeout:   2 * time.Second,
		CloseTimeout:   time.Second,
		Logger:         log,
	}
}

// quick returns a forwarder configuration with short intervals.
func quick(log *kit.Logs) forwarder.Config {
	return forwarder.Config{
		PollMax:      50 * time.Millisecond,
		Backoff:      forwarder.Exponential(50*time.Millisecond, 500*time.Millisecond),
		MaxAttempts:  1000,
		StallTimeout: 10 * time.Second,
		Lease:        10 * time.Second,
		CloseTimeout: 2 * time.Second,
		Logger:       log,
	}
}

// unhurried is like quick, but with a long lease. Use it if the database is slow,
// because all work must end within the lease.
func unhurried(log *kit.Logs) forwarder.Config {
	cfg := quick(log)
	cfg.Lease = 10 * time.Minute
	return cfg
}

// toQueues returns a configuration that publishes each message to the queue that has
// the name of its topic.
func toQueues(url string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler = rabbit.Marshaler{}
	config.Connection.Reconnect = soon
	return config
}

// forward runs a forwarder until the test ends. It reads from db, and publishes to the
// broker of config.
func (f *flow) forward(db *sql.DB, config wamqp.Config, cfg forwarder.Config) *forwarder.Forwarder {
	f.Helper()
	publisher, err := rabbit.NewPublisher(config, impatient(f.log))
	kit.OK(f, err)
	forward, err := forwarder.New(db, publisher, cfg)
	kit.OK(f, err)
	ended := kit.Go(func() error { return forward.Run(context.WithoutCancel(f.Context())) })
	f.Cleanup(func() {
		_ = forward.Close() // a test that needs this error calls Close itself
		if err := <-ended; err != nil {
			f.Errorf("forwarder: %v", err)
		}
		_ = publisher.Close()
	})
	select {
	case <-forward.Running():
	case <-time.After(time.Minute):
		f.Fatal("the forwarder has not started within a minute")
	}
	return forward
}

const keys = 5

// put commits n messages. Two thirds of them have one of five ordering keys.
func (f *flow) put(n int) {
	f.Helper()
	kit.OK(f, f.tryPut(n))
}

func (f *flow) tryPut(n int) error {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = f.next()
	}
	return f.tryPublish(f.queue, messages...)
}

// during calls the function do, and commits messages until this function returns.
func (f *flow) during(do func()) {
	f.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if err := f.tryPut(10); err != nil {
				f.Errorf("the writer: %v", err)
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	do()
}

// next returns the message with the next number.
func (f *flow) next() *message.Message {
	msg := message.NewMessage(fmt.Sprintf("%06d", f.sent), []byte("payload"))
	if f.sent%3 > 0 {
		outbox.SetOrderingKey(msg, fmt.Sprint("key", f.sent%keys))
	}
	f.sent++
	return msg
}

func (f *flow) publish(topic string, messages ...*message.Message) {
	f.Helper()
	kit.OK(f, f.tryPublish(topic, messages...))
}

func (f *flow) tryPublish(topic string, messages ...*message.Message) error {
	return outbox.InTx(context.WithoutCancel(f.Context()), f.db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, messages...)
	})
}

func (f *flow) drained() {
	f.Helper()
	f.eventually("the outbox is empty", func() bool { return f.count(`once_outbox`) == 0 })
}

// waiting returns how many messages wait in a queue.
func (f *flow) waiting(channel *amqp.Channel, queue string) int {
	f.Helper()
	found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	kit.OK(f, err)
	return found.Messages
}

// arrived takes all messages from a queue. It returns their ids in the order of
// arrival, including duplicates.
func (f *flow) arrived(queue string) []string {
	f.Helper()
	channel := f.admin()
	var ids []string
	for {
		delivery, ok, err := channel.Get(queue, true)
		kit.OK(f, err)
		if !ok {
			return ids
		}
		ids = append(ids, delivery.MessageId)
	}
}

// complete waits until all messages were forwarded. It fails the test if messages are
// missing in the queue or out of order, see inOrder, or if an attempt was counted. It
// returns the number of duplicates.
func (f *flow) complete() (copies int) {
	f.Helper()
	f.drained()
	f.nothingCharged()
	return f.inOrder(f.arrived(f.queue))
}

// inOrder fails the test if ids does not contain every message that next has returned,
// or if the first delivery of a message comes after a later message of its key. It
// returns the number of duplicates.
func (f *flow) inOrder(ids []string) (copies int) {
	f.Helper()
	seen := map[string]bool{}
	last := map[int]int{}
	for _, id := range ids {
		if seen[id] {
			copies++
			continue
		}
		seen[id] = true
		n, err := strconv.Atoi(id)
		if err != nil {
			f.Errorf("%q has arrived: %v", id, err)
			continue
		}
		if n%3 == 0 {
			continue
		}
		if n < last[n%keys] {
			f.Errorf("%d came after %d of the same key", n, last[n%keys])
		}
		last[n%keys] = n
	}
	if len(seen) != f.sent {
		f.Errorf("%d of %d messages arrived", len(seen), f.sent)
	}
	return copies
}

// nothingCharged fails the test if an attempt was counted for a message, or if a
// message became a dead letter. It ignores the messages whose ids are in
// other.
func (f *flow) nothingCharged(other ...string) {
	f.Helper()
	rows, err := f.db.QueryContext(f.Context(), `SELECT message_id, attempts, error FROM charged
		UNION ALL SELECT message_id, attempts, last_error FROM once_outbox_dead`)
	kit.OK(f, err)
	defer rows.Close()
	for rows.Next() {
		var id, text string
		var attempts int
		kit.OK(f, rows.Scan(&id, &attempts, &text))
		if !slices.Contains(other, id) {
			f.Errorf("%s is charged with attempt %d: %s", id, attempts, text)
		}
	}
	kit.OK(f, rows.Err())
}
