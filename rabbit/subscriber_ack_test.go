package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// gate is a marshaler that blocks when it gets a message with the id "gate". This blocks
// the single goroutine of the subscription. So all messages that are acked or nacked
// meanwhile are settled together.
type gate struct {
	rabbit.Marshaler

	reached, open chan struct{}
	over          <-chan struct{} // closed when the test ends, even if it fails
}

func newGate(t *testing.T) gate {
	t.Helper()
	return gate{reached: make(chan struct{}), open: make(chan struct{}), over: t.Context().Done()}
}

func (g gate) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.MessageId == "gate" {
		select {
		case g.reached <- struct{}{}:
		case <-g.over:
		}
		select {
		case <-g.open:
		case <-g.over:
		}
	}
	return g.Marshaler.Unmarshal(d)
}

// during calls ackOrNack while the subscription is blocked. The message "gate" then
// arrives, and the caller must ack it.
func (g gate) during(t *testing.T, uri, queue string, ackOrNack func()) {
	t.Helper()
	send(t, uri, queue, "gate")
	finished(t, "the gate is reached", g.reached)
	ackOrNack()
	g.open <- struct{}{}
}

// Trap 45. A multiple ack must not include a message that is unacked or was nacked, no
// matter in which order messages are acked and nacked.
func TestTrap45_AMultipleAckIncludesOnlyAckedMessages(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(cfg *rabbit.SubscriberConfig) (requeue bool){
		"requeue at once":       func(*rabbit.SubscriberConfig) bool { return true },
		"requeue after an hour": func(cfg *rabbit.SubscriberConfig) bool { cfg.NackMin, cfg.NackMax = time.Hour, time.Hour; return true },
		"drop after a nack":     func(*rabbit.SubscriberConfig) bool { return false },
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				if seed > 0 {
					kit.Long(t)
				}
				cfg := brisk
				cfg.InFlight, cfg.CloseTimeout = 40, 50*time.Millisecond
				requeue := change(&cfg)
				ackAtRandom(t, rand.New(rand.NewPCG(4, seed)), cfg, requeue)
			})
		}
	}
}

func ackAtRandom(t *testing.T, rng *rand.Rand, cfg rabbit.SubscriberConfig, requeue bool) {
	t.Helper()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	g := newGate(t)
	config := queueConfig(uri)
	config.Marshaler = g
	config.Consume.Qos.PrefetchCount = 1000 // a high prefetch count, so that the message "gate" is delivered, although it is the last one
	config.Consume.NoRequeueOnNack = !requeue
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)

	const most = 30 // less than InFlight
	left := map[string]int{}
	coming := 60
	ids := make([]string, coming)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	send(t, uri, queue, ids...)
	var held, settled []*message.Message
	delivered := map[string]bool{} // messages that were delivered and not given back
	ackOrNack := func() {
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		some := rng.IntN(len(held)) + 1
		for _, msg := range held[:some] {
			switch n := rng.IntN(10); {
			case n < 2 && len(left) < most: // neither acked nor nacked
				left[msg.UUID] = 1
				continue
			case n < 5 && cfg.NackMin < time.Hour:
				if requeue {
					coming++
					delete(delivered, msg.UUID)
				}
				msg.Nack()
			case n < 5 && len(left) < most:
				left[msg.UUID] = 1
				msg.Nack()
				continue
			default:
				msg.Ack()
			}
			settled = append(settled, msg)
		}
		held = held[some:]
	}
	for coming+len(held) > 0 {
		for range min(coming, rng.IntN(10), cfg.InFlight-len(left)-len(held)-1) {
			msg := receive(t, messages)
			if msg.UUID == "gate" {
				msg.Ack()
				continue
			}
			if delivered[msg.UUID] { // a second delivery is allowed only after the channel was closed
				t.Fatalf("%s is delivered again", msg.UUID)
			}
			delivered[msg.UUID] = true
			held = append(held, msg)
			coming--
		}
		switch {
		case len(held) == 0:
		case rng.IntN(3) == 0:
			ackOrNack()
		default:
			g.during(t, uri, queue, ackOrNack)
		}
	}
	for _, msg := range settled {
		finished(t, "the ack or nack is sent", msg.Context().Done())
	}
	go func() {
		for msg := range messages { // messages named "gate"
			msg.Ack()
		}
	}()
	if err := s.Close(); len(left) > 0 && !errors.Is(err, rabbit.ErrGivenBack) && cfg.NackMin < time.Hour {
		t.Errorf("Close: %v", err)
	}
	eventually(t, "the unacked messages are in the queue again", func() bool { return depth(t, uri, queue) >= len(left) })
	found := drain(t, uri, queue)
	delete(found, "gate")
	if !maps.Equal(found, left) {
		t.Errorf("in the queue:\n%v, want\n%v", found, left)
	}
}

// Trap 45. The broker cancels a consumer while some of its messages are in flight, and
// others have not reached a handler yet. The messages in flight are then acked
// together. The channel must stay open until all messages are settled.
func TestTrap45_ManyAcksAfterACancel(t *testing.T) {
	wire := newTap(t, brokerURL(t))
	queue := declareQueue(t, wire.uri, nil)
	g := newGate(t)
	config := queueConfig(wire.tapped)
	config.Marshaler = g
	config.Consume.Qos.PrefetchCount = 20
	cfg := brisk
	cfg.InFlight = 10
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)
	send(t, wire.uri, queue, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11")
	var held []*message.Message
	for range 8 {
		held = append(held, receive(t, messages))
	}
	kit.OK(t, kit.Err(admin(t, wire.uri).QueueDelete(queue, false, false, false)))
	eventually(t, "the queue exists again", func() bool { return depth(t, wire.uri, queue) >= 0 })
	g.during(t, wire.uri, queue, func() {
		for _, n := range []int{3, 0, 1, 2, 6, 4, 7, 5} {
			held[n].Ack()
		}
	})
	for _, msg := range held {
		finished(t, "the ack or nack is sent", msg.Context().Done())
	}
	receive(t, messages).Ack()
	send(t, wire.uri, queue, "after")
	if msg := receive(t, messages); !msg.Ack() || msg.UUID != "after" {
		t.Errorf("got %s", msg.UUID)
	}
	kit.Check(t, s.Close())
	// The Subscriber asks for the deleted queue, and which type the new one has.
	asks := func(reason string) bool {
		return strings.Contains(reason, "no queue") || strings.Contains(reason, "invalid arg 'x-delivery-limit'")
	}
	if why := slices.DeleteFunc(wire.closedByBroker(), asks); len(why) > 0 {
		t.Errorf("the broker closed channels: %s", strings.Join(why, "; "))
	}
}

// Messages that are acked at the same time share one multiple ack. A single ack does not
// wait for other acks.
func TestAcksAreSentTogether(t *testing.T) {
	const n = 100
	wire := newTap(t, brokerURL(t))
	queue := declareQueue(t, wire.uri, nil)
	g := newGate(t)
	config := queueConfig(wire.tapped)
	config.Marshaler = g
	cfg := brisk
	cfg.InFlight = 2 * n
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	send(t, wire.uri, queue, ids...)
	var held []*message.Message
	for range n {
		held = append(held, receive(t, messages))
	}
	g.during(t, wire.uri, queue, func() {
		for _, msg := range held {
			msg.Ack()
		}
		kit.Eventually(t, time.Minute, "all acks wait for the gate", func() bool { return kit.Goroutines(".waitHandled(") == 0 })
	})
	for _, msg := range held {
		finished(t, "the ack or nack is sent", msg.Context().Done())
	}
	last := receive(t, messages) // the message "gate"
	last.Ack()
	finished(t, "the ack or nack is sent", last.Context().Done())
	kit.Check(t, s.Close())
	if acks := wire.acks(); acks != 2 { // one ack for these messages, and one for the message "gate"
		t.Errorf("%d acks were sent for %d messages", acks, n)
	}
	if left := drain(t, wire.uri, queue); len(left) > 0 {
		t.Errorf("left in the queue: %v", left)
	}
}

// Trap 47. The Subscriber returns messages to their queue with a nack, not with a
// reject. Since RabbitMQ 4.3, rejects count towards the delivery limit, and nacks do
// not.
func TestTrap47MessagesAreGivenBackByNack(t *testing.T) {
	wire := newTap(t, brokerURL(t))
	queue := declareQueue(t, wire.uri, nil)
	cfg := brisk
	cfg.InFlight = 2
	s := newSubscriber(t, queueConfig(wire.tapped), cfg)
	messages := subscribe(t, s, queue)
	send(t, wire.uri, queue, "a", "b", "c")
	held := []*message.Message{receive(t, messages), receive(t, messages)}
	held[0].Nack()
	finished(t, "the ack or nack is sent", held[0].Context().Done())
	ended := make(chan error, 1)
	go func() { ended <- s.Close() }() // returns c to the queue, and also a if it came back, because no handler has received them
	eventually(t, "both are in the queue again", func() bool { return depth(t, wire.uri, queue) == 2 })
	held[1].Ack()
	kit.Check(t, <-ended)
	if nacks, rejects := wire.givenBack(); nacks == 0 || rejects > 0 {
		t.Errorf("%d nacks and %d rejects were sent", nacks, rejects)
	}
}

// Trap 103. When messages stay unacked for longer than the consumer timeout, RabbitMQ 4.3
// cancels the consumer and keeps its channel open. It cancels the consumer again for each
// further message. The contexts of the messages end. A message is delivered again, but
// not before its first call has returned. All other queues continue.
//
// Trap 104. A late ack would revive the cancelled consumer. So it is not sent, and the
// channel of the consumer is closed.
func TestTrap103_ConsumerTimeoutEndsOnlyTheCallsOfItsConsumer(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	uri := kit.PrivateRabbitOf(t, "4.3", "deprecated_features.permit.transient_nonexcl_queues = false").URL("/")
	for name, args := range map[string]amqp091.Table{
		"competing consumers": {}, "single active consumer": {"x-single-active-consumer": true},
	} {
		t.Run(name, func(t *testing.T) {
			args := maps.Clone(args)
			args["x-queue-type"], args["x-consumer-timeout"] = "quorum", int32(300)
			timesOut(t, uri, declareQueue(t, uri, args))
		})
	}
	t.Run("trap 105: a transient queue that the broker denies is an error of Subscribe", func(t *testing.T) {
		config := queueConfig(uri)
		config.Queue.Durable = false
		_, err := newSubscriber(t, config, brisk).Subscribe(context.WithoutCancel(t.Context()), "transient")
		if err == nil || !strings.Contains(err.Error(), "541") {
			t.Errorf("Subscribe: %v", err)
		}
	})
}

// timesOut subscribes to a queue with a short consumer timeout, and to another queue.
func timesOut(t *testing.T, uri, queue string) {
	t.Helper()
	other, h := declareQueue(t, uri, nil), new(heard)
	config, cfg := queueConfig(uri), brisk
	config.TopologyBuilder = &existing{}
	cfg.InFlight, cfg.Logger = 5, h
	s := newSubscriber(t, config, cfg)
	messages, others := subscribe(t, s, queue), subscribe(t, s, other)
	send(t, uri, other, "kept")
	kept := receive(t, others)

	var late []*message.Message
	for _, id := range []string{"a", "b", "c", "d"} {
		send(t, uri, queue, id)
		late = append(late, receive(t, messages))
	}
	for _, msg := range late {
		finished(t, "the context of a message that has timed out ends", msg.Context().Done())
		if cause := context.Cause(msg.Context()); !strings.Contains(cause.Error(), "consumer timeout") {
			t.Errorf("the context has ended: %v", cause)
		}
	}
	send(t, uri, queue, "next")
	next := receive(t, messages)
	if next.UUID != "next" {
		t.Errorf("message %s is delivered while its first call runs", next.UUID)
	}
	next.Ack()
	send(t, uri, other, "more")
	receive(t, others).Ack()
	if err := kept.Context().Err(); err != nil {
		t.Errorf("the context of a message of another queue has ended: %v", context.Cause(kept.Context()))
	}
	kept.Ack()

	for _, msg := range late {
		msg.Ack()
	}
	work := handle(messages)
	for _, msg := range late {
		eventually(t, "the message is delivered again", func() bool { return work.of(msg.UUID) > 0 })
	}
	eventually(t, "the cancelled consumers are gone", func() bool { return consumers(t, uri, queue) == 1 })
	kit.Check(t, s.Close())
	finished(t, "the subscription ends", work.ended)
	if left := depth(t, uri, queue); left != 0 {
		t.Errorf("%d messages are left in the queue", left)
	}
	if h.said(interruptedLine) == 0 || h.said("Ack not sent") < len(late) {
		t.Errorf("logged: %q", h.all())
	}
}

// existing is a topology builder for queues that exist already.
type existing struct{ amqp.DefaultTopologyBuilder }

func (existing) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// consumers returns the number of consumers of a queue.
func consumers(t testing.TB, uri, queue string) int {
	t.Helper()
	found, err := admin(t, uri).QueueDeclarePassive(queue, true, false, false, false, nil)
	kit.OK(t, err)
	return found.Consumers
}

// revealing is a marshaler that passes the channel of its first delivery to the test.
type revealing struct {
	rabbit.Marshaler

	channels chan amqp091.Acknowledger
}

func (r revealing) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	select {
	case r.channels <- delivery.Acknowledger:
	default:
	}
	return r.Marshaler.Unmarshal(delivery)
}

// A message is not handled twice at the same time by one Subscriber, even if the broker
// gives it to another subscription of the queue. The messages have no id. A message with
// another body does not wait.
func TestRedeliveredMessageWaitsForItsFirstCall(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue, marshaler := declareQueue(t, uri, nil), revealing{channels: make(chan amqp091.Acknowledger, 1)}
	config := queueConfig(uri)
	config.Marshaler = marshaler
	s := newSubscriber(t, config, brisk)
	first := subscribe(t, s, queue)
	publish := func(body string) {
		kit.OK(t, admin(t, uri).Publish("", queue, false, false, amqp091.Publishing{Body: []byte(body)}))
	}
	publish("slow")
	slow := receive(t, first)

	second, all := subscribe(t, s, queue), make(chan *message.Message)
	for _, messages := range []<-chan *message.Message{first, second} {
		go func() {
			for msg := range messages {
				all <- msg
			}
		}()
	}
	if err := (<-marshaler.channels).Ack(99, false); err != nil { // 406
		t.Fatal(err)
	}
	finished(t, "the channel is closed", slow.Context().Done())
	publish("fast")
	if msg := receive(t, all); string(msg.Payload) != "fast" {
		t.Errorf("message %q is delivered while its first call runs", msg.Payload)
	} else {
		msg.Ack()
	}
	nothing(t, all)
	slow.Ack()
	if msg := receive(t, all); string(msg.Payload) != "slow" || !msg.Ack() {
		t.Errorf("got %q", msg.Payload)
	}
}
