package rabbit_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
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
	testkit.Long(t)
	t.Parallel()
	nodes := testkit.PrivateRabbitCluster(t, 3)
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
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h, ReconnectMin: time.Millisecond, ConfirmTimeout: time.Minute})
	if err := p.Publish(queue, numbered("before", 10)...); err != nil {
		t.Fatal(err)
	}

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
	if err := p.Publish(queue, numbered("then", 10)...); err != nil {
		t.Error(err)
	}
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
	if err := p.Publish(full, newMessage("first")); err != nil {
		t.Fatal(err)
	}
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
	if err := p.Publish(full, newMessage("first")); err != nil {
		t.Fatal(err)
	}
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
