package rabbit

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// If the broker does not open a confirm channel, the Publisher does not use the
// channel, and closes the connection. Close does not wait for the broker's reply.
func TestChannelThatIsNotOpenedIsNotUsed(t *testing.T) {
	t.Parallel()
	conn := &mute{muted: make(chan struct{})}
	config := amqp.ConnectionConfig{AmqpURI: testkit.Rabbit(t).URL, AmqpConfig: &amqp091.Config{
		Dial: func(network, address string) (_ net.Conn, err error) {
			conn.Conn, err = new(net.Dialer).DialContext(t.Context(), network, address)
			return conn, err
		},
	}}
	c, err := connect(t.Context(), config, dialSettings{confirmChannels: true, dialTimeout: time.Minute, writeTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.end(false)
	closing, cancel := context.WithCancel(t.Context())
	cancel()
	s := &session{connection: c, p: &Publisher{ctx: closing, wake: make(chan struct{}, 1)}}
	close(conn.muted)
	if err := s.ensureChannel(); err == nil || s.p.channel != nil || s.p.channels != nil {
		t.Errorf("got %v, and %d channels; want an error", err, len(s.p.channels))
	}
}

// mute is a connection that receives nothing after the channel muted is closed.
type mute struct {
	net.Conn

	muted chan struct{}
}

func (m *mute) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil {
			return n, err
		}
		select {
		case <-m.muted:
		default:
			return n, nil
		}
	}
}
