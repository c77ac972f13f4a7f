package rabbit_test

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

const (
	otherChannel    = "Several nacks in a row, changing to another channel"
	otherConnection = "RabbitMQ connection unavailable, retrying the broker nacks every message, changing to another connection"
)

// Trap 96. In a cluster, the leader of a quorum queue is killed, and the Publisher
// immediately reconnects to another node. The channel that it opens there keeps using
// the lost leader, so the broker nacks every message on it. The Publisher must change
// the channel.
func TestTrap96_NacksAfterALostLeaderEnd(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	nodes := kit.PrivateRabbitCluster(t, 3)
	queue := declareQuorum(t, nodes[0].URL("/"), len(nodes))

	var at atomic.Int32
	config := queueConfig(nodes[0].URL("/"))
	config.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: 10 * time.Second,
		Dial: func(network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(t.Context(), network, nodes[at.Load()].Address())
		},
	}
	config.TopologyBuilder = &undeclared{}
	h := new(heard)
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h, ConfirmTimeout: time.Minute})
	kit.OK(t, p.Publish(queue, numbered("before", 10)...))

	at.Store(1)
	nodes[0].Kill()
	nacks := 0
	eventually(t, "a message is confirmed", func() bool {
		err := p.Publish(queue, newMessage("after"))
		if outcomeOf(err) == "refused" {
			nacks++
		}
		return err == nil
	})
	t.Logf("%d nacks, channel changed %d times, connection %d times", nacks, h.said(otherChannel), h.said(otherConnection))
	if nacks >= 3 && h.said(otherChannel) == 0 {
		t.Error("the channel was not changed")
	}
	// The new channel finds the new leader.
	kit.Check(t, p.Publish(queue, numbered("then", 10)...))
}

// declareQuorum declares a quorum queue with the given number of members, and returns
// its name. The leader of the queue is on the node of uri.
func declareQuorum(t *testing.T, uri string, members int) string {
	t.Helper()
	channel := admin(t, uri)
	queue := uniqueName("q")
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-quorum-initial-group-size": int32(members), "x-queue-leader-locator": "client-local",
	}); err != nil {
		t.Fatal(err)
	}
	return queue
}

// Trap 96. A full queue nacks every message. The Publisher then changes the channel
// from time to time, and keeps the connection.
func TestTrap96_AFullQueueCostsNoConnection(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	full := declareQueue(t, uri, amqp091.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	other := declareQueue(t, uri, nil)
	h := new(heard)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{Logger: h})
	kit.OK(t, p.Publish(full, newMessage("first")))
	eventually(t, "the channel is changed again, after a pause of a second", func() bool {
		mustBe(t, "refused", p.Publish(full, newMessage("full")))
		mustBe(t, "confirmed", p.Publish(other, newMessage("fine")))
		return h.said(otherChannel) == 2
	})
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}
	// A confirm ends the streak of nacks.
	if got := drain(t, uri, full); len(got) != 1 {
		t.Errorf("in the queue: %v", got)
	}
	mustBe(t, "confirmed", p.Publish(full, newMessage("fits")))
}

// Trap 96. If the broker nacks every message, the Publisher reconnects, and every
// message still gets an outcome.
func TestTrap96_OnlyNacksChangeTheConnection(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	full := declareQueue(t, uri, amqp091.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	h := new(heard)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{Logger: h})
	kit.OK(t, p.Publish(full, newMessage("first")))
	eventually(t, "connected again", func() bool {
		err := p.Publish(full, newMessage("more"))
		if got := outcomeOf(err); got != "refused" && got != "unknown" && got != "unavailable" {
			t.Fatalf("the outcome is %s: %v", got, err)
		}
		return h.said(connectedLine) >= 2
	})
	if h.said(otherConnection) == 0 {
		t.Errorf("the reason is not logged: %q", h.all())
	}
	if n := h.said(otherChannel); n > 3 {
		t.Errorf("the channel was changed %d times", n)
	}
}

// A channel that was replaced is closed when it has no more messages. Otherwise each
// change would use up one of the channels of the connection.
func TestReplacedChannelIsClosed(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	full := declareQueue(t, uri, amqp091.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	other := declareQueue(t, uri, nil)
	w := newTap(t, uri)
	p := newPublisher(t, queueConfig(w.tapped), rabbit.PublisherConfig{})
	mustBe(t, "confirmed", p.Publish(full, newMessage("first")))
	for range 3 {
		mustBe(t, "refused", p.Publish(full, newMessage("full")))
	}
	eventually(t, "the channel is closed", func() bool { return w.closesOfChannels() == 1 })
	mustBe(t, "confirmed", p.Publish(other, newMessage("fine")))
	if closed := w.closedByBroker(); len(closed) != 0 {
		t.Errorf("the broker has closed channels: %q", closed)
	}
}

// Trap 76. A stuck queue does not stop messages to other queues on the same connection.
func TestTrap76_OneStuckQueueStopsNoOther(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := impatient
	cfg.Logger = h
	cfg.ConfirmTimeout, cfg.WriteTimeout = 3*time.Second, 10*time.Second // long enough for a busy broker
	cfg.ReadyTimeout = time.Minute
	p := newPublisher(t, queueConfig(broker.URL("/")), cfg)
	connected(t, p, stuck)
	resume := suspend(t, broker, stuck)
	defer resume()

	for round, calm := 0, 0; calm < 3; round++ {
		var lost outcomes
		for _, msg := range numbered(fmt.Sprint("stuck", round, "-"), 10) {
			lost.publish(p, stuck, msg)
		}
		// Publish to the other queue until the messages to the stuck queue are overdue.
		var err error
		for err == nil && lost.reported() < 10 {
			err = p.Publish(other, numbered("fine", 10)...)
		}
		switch {
		case err == nil:
			calm++
		case round-calm == 3: // a pause of the machine can happen once, but not every time
			mustBe(t, "confirmed", err)
		}
		for id, err := range lost.wait(t) {
			if got := outcomeOf(err); got != "unknown" {
				t.Errorf("%s is %s (%v), want unknown", id, got, err)
			}
		}
	}
	if n := h.said(connectedLine); n != 1 {
		t.Errorf("connected %d times: %q", n, h.all())
	}

	resume()
	connected(t, p, stuck)
}

// Trap 76. The broker stops reading from a connection that sends too many messages to a
// stuck queue. The Publisher recovers from this.
func TestTrap76_AFloodToAStuckQueueEnds(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	stuck := declareQueue(t, broker.URL("/"), nil)
	other := declareQueue(t, broker.URL("/"), nil)
	p := newPublisher(t, queueConfig(broker.URL("/")), impatient)
	connected(t, p, stuck)
	defer suspend(t, broker, stuck)()

	var all outcomes
	for _, msg := range numbered("stuck", 4000) {
		all.publish(p, stuck, msg)
	}
	for id, err := range all.wait(t) {
		if got := outcomeOf(err); got != "unknown" && got != "unavailable" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	eventually(t, "a message to the other queue is confirmed", func() bool { return p.Publish(other, newMessage("m")) == nil })
}

// Trap 15. A done function blocks, although it must not. While it blocks, the confirm
// loop reads no returns, and does not see that a channel or the connection is closed. The
// Publisher must still reconnect.
func TestTrap15_NotificationsDoNotBlockTheReader(t *testing.T) {
	t.Parallel()
	const window = 50
	broker := kit.Rabbit(t)
	queue := declareQueue(t, broker.URL, nil)
	h := new(heard)
	cfg := impatient
	cfg.Window = window + 1
	cfg.Logger = h
	cfg.ReadyTimeout, cfg.ConfirmTimeout = time.Minute, time.Minute // only the loss of the connection may decide the outcomes
	var read atomic.Int64
	config := queueConfig(broker.URL)
	config.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		return countedReads{conn, &read}, err
	}}
	p := newPublisher(t, config, cfg)

	stuck, released := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // otherwise Close would wait, too
	var outstanding sync.WaitGroup
	outstanding.Add(1)
	p.PublishAsync(queue, newMessage("first"), func(err error) {
		close(stuck)
		<-released
		kit.Check(t, err)
		outstanding.Done()
	})
	<-stuck
	var all outcomes
	nowhere := uniqueName("nowhere")
	for group := range slices.Chunk(numbered("m", window), window/5) {
		before := read.Load()
		for _, msg := range group {
			all.publish(p, nowhere, msg)
		}
		eventually(t, "responses are read", func() bool { return read.Load() > before })
	}
	if n := all.reported(); n != 0 {
		t.Fatalf("%d outcomes were reported meanwhile", n)
	}
	before := h.said(connectedLine)
	broker.CloseConnections(t, "test")
	eventually(t, "connected again", func() bool { return h.said(connectedLine) > before })
	release()
	outstanding.Wait()
	for id, err := range all.wait(t) {
		if got := outcomeOf(err); got != "refused" && got != "unknown" {
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	eventually(t, "published again", func() bool { return p.Publish(queue, newMessage("after")) == nil })
}

// countedReads is a connection that counts its calls of Read.
type countedReads struct {
	net.Conn

	n *atomic.Int64
}

func (c countedReads) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(1)
	return n, err
}
