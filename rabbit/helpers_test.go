package rabbit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/rabbit"
)

func TestMain(m *testing.M) { kit.Main(m) }

func brokerURL(t testing.TB) string {
	t.Helper()
	return kit.Rabbit(t).URL
}

func uniqueName(prefix string) string { return kit.Broker{}.Name(prefix) }

// admin returns a channel on a separate connection.
func admin(t testing.TB, uri string) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.Dial(uri)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(t, err)
	return channel
}

func declareQueue(t testing.TB, uri string, args amqp091.Table) string {
	t.Helper()
	queue := uniqueName("q")
	channel := admin(t, uri)
	kit.OK(t, kit.Err(channel.QueueDeclare(queue, true, false, false, false, args)))
	t.Cleanup(func() { _, _ = channel.QueueDelete(queue, false, false, false) })
	return queue
}

// bind declares a durable queue and binds it to the fanout exchange of the topic.
func bind(t testing.TB, uri, topic string) string {
	t.Helper()
	queue := declareQueue(t, uri, nil)
	channel := admin(t, uri)
	kit.OK(t, channel.ExchangeDeclare(topic, "fanout", true, false, false, false, nil))
	kit.OK(t, channel.QueueBind(queue, "", topic, false, nil))
	t.Cleanup(func() { _ = channel.ExchangeDelete(topic, false, false) })
	return queue
}

// drain takes all messages from a queue, and counts them by message id.
func drain(t testing.TB, uri, queue string) map[string]int {
	t.Helper()
	channel := admin(t, uri)
	found := make(map[string]int)
	for {
		delivery, ok, err := channel.Get(queue, true)
		kit.OK(t, err)
		if !ok {
			return found
		}
		found[delivery.MessageId]++
	}
}

// queueConfig returns a configuration that publishes to the queue that has the name of
// the topic.
func queueConfig(uri string) amqp.Config {
	config := amqp.NewDurableQueueConfig(uri)
	config.Marshaler = rabbit.Marshaler{}
	config.Connection.Reconnect = soon(10 * time.Millisecond)
	return config
}

// soon returns a configuration with short pauses between attempts to connect.
func soon(first time.Duration) *amqp.ReconnectConfig {
	return &amqp.ReconnectConfig{BackoffInitialInterval: first, BackoffMaxInterval: 10 * first}
}

// topicConfig returns a configuration that publishes to the fanout exchange that has
// the name of the topic.
func topicConfig(uri string) amqp.Config {
	config := amqp.NewDurablePubSubConfig(uri, nil)
	config.Marshaler = rabbit.Marshaler{}
	config.Connection.Reconnect = soon(10 * time.Millisecond)
	return config
}

// newPublisher returns a Publisher. Its ReadyTimeout defaults to a minute, because
// other tests that use the broker at the same time may slow it down.
func newPublisher(t testing.TB, config amqp.Config, cfg rabbit.PublisherConfig) *rabbit.Publisher {
	t.Helper()
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, time.Minute)
	p, err := rabbit.NewPublisher(config, cfg)
	kit.OK(t, err)
	t.Cleanup(func() { closes(t, p.Close) })
	return p
}

// closes fails the test if Close does not return. The error of Close does not matter.
func closes(t testing.TB, closer func() error) {
	done := make(chan struct{})
	go func() {
		_ = closer()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("Close does not return")
	}
}

func newMessage(id string) *message.Message {
	return message.NewMessage(id, []byte("payload of "+id))
}

func numbered(prefix string, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = newMessage(prefix + strconv.Itoa(i))
	}
	return messages
}

// outcomes collects the outcomes that PublishAsync reports, by message id.
type outcomes struct {
	mu   sync.Mutex
	errs map[string]error
	all  sync.WaitGroup
}

func (o *outcomes) publish(p *rabbit.Publisher, topic string, msg *message.Message) {
	o.with(p.PublishAsync, topic, msg)
}

func (o *outcomes) publishUnordered(p *rabbit.Publisher, topic string, msg *message.Message) {
	o.with(p.PublishUnordered, topic, msg)
}

func (o *outcomes) with(publish func(string, *message.Message, func(error)), topic string, msg *message.Message) {
	o.all.Add(1)
	publish(topic, msg, func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.errs == nil {
			o.errs = make(map[string]error)
		}
		o.errs[msg.UUID] = err
		o.all.Done()
	})
}

func (o *outcomes) reported() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs)
}

// wait waits until all outcomes are reported, and returns them.
func (o *outcomes) wait(t testing.TB) map[string]error {
	t.Helper()
	finished := make(chan struct{})
	go func() { o.all.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(time.Minute):
		t.Fatal("not every outcome was reported within a minute")
	}
	return o.errs
}

// outcomeOf classifies an error by its methods, as a package that does not import
// rabbit would do.
func outcomeOf(err error) string {
	var refused interface{ Refused() bool }
	var unacceptable interface{ Unacceptable() bool }
	var unavailable interface{ Unavailable() bool }
	switch {
	case err == nil:
		return "confirmed"
	case errors.As(err, &refused) && refused.Refused():
		return "refused"
	case errors.As(err, &unacceptable) && unacceptable.Unacceptable():
		return "unacceptable"
	case errors.As(err, &unavailable) && unavailable.Unavailable():
		return "unavailable"
	}
	return "unknown"
}

func mustBe(t testing.TB, want string, err error) {
	t.Helper()
	if got := outcomeOf(err); got != want {
		t.Fatalf("got %s (%v), want %s", got, err, want)
	}
}

func mustHaveCode(t testing.TB, want int, err error) {
	t.Helper()
	if e, ok := errors.AsType[*rabbit.PublishError](err); !ok || e.Code != want {
		t.Errorf("got %v, want code %d", err, want)
	}
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	kit.Eventually(t, time.Minute, what, cond)
}

// Log lines that the tests look for begin with these texts.
const (
	connectedLine   = "RabbitMQ connection established"
	lostLine        = "RabbitMQ connection unavailable"
	consumingLine   = "RabbitMQ consumer started"
	interruptedLine = "RabbitMQ consumer interrupted"
	dropsLine       = "Queue limit drops"
	timeoutLine     = "Consumer timeout"
)

// heard is a logger that records its lines.
type heard struct {
	mu    sync.Mutex
	lines []string
}

func (h *heard) add(msg string, err error, fields watermill.LogFields) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprint(msg, " ", err, " ", fields))
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.lines...)
}

func (h *heard) Error(msg string, err error, fields watermill.LogFields) { h.add(msg, err, fields) }
func (h *heard) Info(msg string, fields watermill.LogFields)             { h.add(msg, nil, fields) }
func (h *heard) Debug(msg string, fields watermill.LogFields)            { h.add(msg, nil, fields) }
func (h *heard) Trace(msg string, fields watermill.LogFields)            { h.add(msg, nil, fields) }
func (h *heard) With(watermill.LogFields) watermill.LoggerAdapter        { return h }

// suspend suspends the process of a queue in the broker, so that the queue does not
// respond until the test calls resume. Callers must defer resume, because deleting a
// suspended queue never ends.
func suspend(t *testing.T, broker *servers.Rabbit, queue string) (resume func()) {
	t.Helper()
	tell := func(what string) {
		eval(t, broker, fmt.Sprintf(
			`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q))`,
			queue, what))
	}
	tell("suspend")
	return sync.OnceFunc(func() { tell("resume") })
}

// brisk is a configuration with short pauses.
var brisk = rabbit.SubscriberConfig{
	NackMin:      10 * time.Millisecond,
	ReadyTimeout: time.Minute,      // the broker may be busy
	DialTimeout:  20 * time.Second, // the broker may be busy
	CloseTimeout: 20 * time.Second,
}

func newSubscriber(t testing.TB, config amqp.Config, cfg rabbit.SubscriberConfig) *rabbit.Subscriber {
	t.Helper()
	s, err := rabbit.NewSubscriber(config, cfg)
	kit.OK(t, err)
	t.Cleanup(func() { closes(t, s.Close) })
	return s
}

func subscribe(t testing.TB, s message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(context.WithoutCancel(t.Context()), topic)
	kit.OK(t, err)
	return messages
}

// receive returns the next message. It fails the test if the payload is empty, because
// no test sends such a message.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the subscription has ended")
		}
		if len(msg.Payload) == 0 {
			t.Fatalf("got a message that was never sent: %+v", msg)
		}
		return msg
	case <-time.After(time.Minute):
		t.Fatal("no message within a minute")
		return nil
	}
}

// nothing fails the test if a message arrives within 200 ms.
func nothing(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		t.Fatalf("got %+v (open: %v)", msg, ok)
	case <-time.After(200 * time.Millisecond):
	}
}

func finished(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
}

// send publishes messages with the given ids to a queue.
func send(t testing.TB, uri, queue string, ids ...string) {
	t.Helper()
	if id := unconfirmed(t, uri, queue, ids...); id != "" {
		t.Fatalf("%s was not confirmed", id)
	}
}

// unconfirmed is like send, but returns the first id that the broker did not confirm. A
// new quorum queue refuses messages until it has a leader, which takes a moment.
func unconfirmed(t testing.TB, uri, queue string, ids ...string) string {
	t.Helper()
	channel := admin(t, uri)
	kit.OK(t, channel.Confirm(false))
	for _, id := range ids {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
			MessageId: id, DeliveryMode: amqp091.Persistent, Body: []byte("payload of " + id),
		})
		kit.OK(t, err)
		if !confirm.Wait() {
			return id
		}
	}
	return ""
}

// depth returns the number of ready messages in a queue, or -1 if the queue does not
// exist.
func depth(t testing.TB, uri, queue string) int {
	t.Helper()
	conn, err := amqp091.Dial(uri)
	if err != nil {
		return -1
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return -1
	}
	found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return -1
	}
	return found.Messages
}

// handled acks messages and counts them by id.
type handled struct {
	mu    sync.Mutex
	count map[string]int
	ended chan struct{}
}

func handle(messages <-chan *message.Message) *handled {
	h := &handled{count: make(map[string]int), ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		for msg := range messages {
			h.mu.Lock()
			h.count[msg.UUID]++
			h.mu.Unlock()
			msg.Ack()
		}
	}()
	return h
}

func (h *handled) ids() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.count)
}

// repeated returns how many messages were delivered more than once.
func (h *handled) repeated() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, times := range h.count {
		if times > 1 {
			n++
		}
	}
	return n
}

func (h *handled) of(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count[id]
}

// closesSoon closes a subscriber whose broker or queue does not respond. It fails the
// test if this takes too long.
func closesSoon(t *testing.T, s *rabbit.Subscriber, messages <-chan *message.Message) {
	t.Helper()
	began := time.Now()
	kit.Check(t, s.Close())
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Close took %v", took)
	}
	if _, ok := <-messages; ok {
		t.Error("got a message after Close")
	}
}
