package rabbit_test

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// Trap 15. A done function blocks, although it must not. While it blocks, the confirm
// loop reads no returns, and does not see that a channel or the connection is closed. The
// Publisher must still reconnect.
func TestTrap15_NotificationsDoNotBlockTheReader(t *testing.T) {
	t.Parallel()
	const window = 50
	broker := testkit.Rabbit(t)
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
		if err != nil {
			t.Error(err)
		}
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
	broker.Ctl(t, "close_all_connections", "--vhost", broker.VHost, "test")
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
