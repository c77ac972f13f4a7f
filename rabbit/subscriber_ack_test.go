package rabbit_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// gate is a marshaler that is held up by messages of that name, and with it the
// one goroutine of the subscription: what is answered meanwhile is answered at
// once.
type gate struct {
	rabbit.Marshaler

	reached, open chan struct{}
	over          <-chan struct{} // with the test, which may have failed
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

// during answers while the gate is shut. The message that shut it is acked by
// whoever receives it.
func (g gate) during(t *testing.T, uri, queue string, answer func()) {
	t.Helper()
	send(t, uri, queue, "gate")
	finished(t, "the gate is reached", g.reached)
	answer()
	g.open <- struct{}{}
}

// One ack can stand for many, and must not for one that has no answer yet or has
// another one, in whatever order they are given.
func TestTrap45_AnAckStandsForNoneThatIsNotAcked(t *testing.T) {
	for name, change := range map[string]func(cfg *rabbit.SubscriberConfig) (requeue bool){
		"nacked ones come back":   func(*rabbit.SubscriberConfig) bool { return true },
		"nacked ones rest":        func(cfg *rabbit.SubscriberConfig) bool { cfg.NackMin, cfg.NackMax = time.Hour, time.Hour; return true },
		"nacked ones are dropped": func(*rabbit.SubscriberConfig) bool { return false },
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				cfg := brisk
				cfg.InFlight, cfg.CloseTimeout = 40, 50*time.Millisecond
				requeue := change(&cfg)
				answerAtRandom(t, rand.New(rand.NewPCG(4, seed)), cfg, requeue)
			})
		}
	}
}

func answerAtRandom(t *testing.T, rng *rand.Rand, cfg rabbit.SubscriberConfig, requeue bool) {
	t.Helper()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	g := newGate(t)
	config := queueConfig(uri)
	config.Marshaler = g
	config.Consume.Qos.PrefetchCount = 1000 // the gate is at the end of the queue
	config.Consume.NoRequeueOnNack = !requeue
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)

	const most = 30 // less than are in flight
	left := map[string]int{}
	coming := 60
	ids := make([]string, coming)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	send(t, uri, queue, ids...)
	var held, answered []*message.Message
	given := map[string]bool{} // to the handlers, and not given back
	answer := func() {
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		some := rng.IntN(len(held)) + 1
		for _, msg := range held[:some] {
			switch n := rng.IntN(10); {
			case n < 2 && len(left) < most: // no answer, ever
				left[msg.UUID] = 1
				continue
			case n < 5 && cfg.NackMin < time.Hour:
				if requeue {
					coming++
					delete(given, msg.UUID)
				}
				msg.Nack()
			case n < 5 && len(left) < most:
				left[msg.UUID] = 1
				msg.Nack()
				continue
			default:
				msg.Ack()
			}
			answered = append(answered, msg)
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
			if given[msg.UUID] { // the channel was closed
				t.Fatalf("%s comes again", msg.UUID)
			}
			given[msg.UUID] = true
			held = append(held, msg)
			coming--
		}
		switch {
		case len(held) == 0:
		case rng.IntN(3) == 0:
			answer()
		default:
			g.during(t, uri, queue, answer)
		}
	}
	for _, msg := range answered {
		finished(t, "the broker was told", msg.Context().Done())
	}
	go func() {
		for msg := range messages { // gates
			msg.Ack()
		}
	}()
	if err := s.Close(); len(left) > 0 && !errors.Is(err, rabbit.ErrGivenBack) && cfg.NackMin < time.Hour {
		t.Errorf("Close: %v", err)
	}
	eventually(t, "what is left is in the queue again", func() bool { return depth(t, uri, queue) >= len(left) })
	found := drain(t, uri, queue)
	delete(found, "gate")
	if !maps.Equal(found, left) {
		t.Errorf("left in the queue:\n%v, not\n%v", found, left)
	}
}

// A consumer is cancelled under messages that are answered together afterwards,
// and under others that no handler had: the channel stays until all are told.
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
	if _, err := admin(t, wire.uri).QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is there again", func() bool { return depth(t, wire.uri, queue) >= 0 })
	g.during(t, wire.uri, queue, func() {
		for _, n := range []int{3, 0, 1, 2, 6, 4, 7, 5} {
			held[n].Ack()
		}
	})
	for _, msg := range held {
		finished(t, "the broker was told", msg.Context().Done())
	}
	receive(t, messages).Ack()
	send(t, wire.uri, queue, "after")
	if msg := receive(t, messages); !msg.Ack() || msg.UUID != "after" {
		t.Errorf("got %s", msg.UUID)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if why := wire.closedByBroker(); len(why) > 0 {
		t.Errorf("the broker has closed channels: %s", strings.Join(why, "; "))
	}
}

// Acks of messages that are answered together go as one, and one that comes alone
// does not wait for others.
func TestManyAcksGoAsOne(t *testing.T) {
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
	})
	for _, msg := range held {
		finished(t, "the broker was told", msg.Context().Done())
	}
	last := receive(t, messages) // the gate
	last.Ack()
	finished(t, "the broker was told", last.Context().Done())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// Two, if none has come to the subscription a moment after the gate was open.
	if acks := wire.acks(); acks < 2 || acks > n/2 {
		t.Errorf("%d acks were sent for %d messages", acks, n)
	}
	if left := drain(t, wire.uri, queue); len(left) > 0 {
		t.Errorf("left in the queue: %v", left)
	}
}

// What goes back to its queue is nacked: RabbitMQ from 4.3 on counts rejects
// towards the delivery limit, and nacks not.
func TestTrap47WhatGoesBackIsNackedNotRejected(t *testing.T) {
	wire := newTap(t, brokerURL(t))
	queue := declareQueue(t, wire.uri, nil)
	cfg := brisk
	cfg.InFlight = 2
	s := newSubscriber(t, queueConfig(wire.tapped), cfg)
	messages := subscribe(t, s, queue)
	send(t, wire.uri, queue, "a", "b", "c")
	held := []*message.Message{receive(t, messages), receive(t, messages)}
	held[0].Nack()
	finished(t, "the broker was told", held[0].Context().Done())
	ended := make(chan error, 1)
	go func() { ended <- s.Close() }() // c, or a again, goes back without a handler
	eventually(t, "they are in the queue again", func() bool { return depth(t, wire.uri, queue) == 2 })
	held[1].Ack()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if nacks, rejects := wire.givenBack(); nacks == 0 || rejects > 0 {
		t.Errorf("%d nacks and %d rejects were sent", nacks, rejects)
	}
}
