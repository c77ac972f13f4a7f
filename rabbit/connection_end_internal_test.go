package rabbit

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
	"github.com/watermill-once/once/internal/testkit"
)

// stuck is a network connection that receives nothing. A write ends only when the
// channel in the field written is closed.
type stuck struct {
	net.Conn

	written  chan struct{}
	closed   chan struct{}
	closing  sync.Once
	closedAt time.Time
	released bool // whether Close ends the write
}

func newStuck() *stuck { return &stuck{written: make(chan struct{}), closed: make(chan struct{})} }

func (s *stuck) Write([]byte) (int, error) {
	<-s.written
	return 0, net.ErrClosed
}

func (s *stuck) Read([]byte) (int, error) {
	<-s.closed
	return 0, net.ErrClosed
}

func (s *stuck) Close() error {
	s.closing.Do(func() {
		s.closedAt = time.Now()
		close(s.closed)
		if s.released {
			close(s.written)
		}
	})
	return nil
}

func (s *stuck) SetDeadline(time.Time) error      { return nil }
func (s *stuck) SetReadDeadline(time.Time) error  { return nil }
func (s *stuck) SetWriteDeadline(time.Time) error { return nil }

func (s *stuck) wire(t *testing.T) *amqpwire.Conn {
	t.Helper()
	wire := amqpwire.NewConn(s, amqpwire.Config{WriteTimeout: time.Minute})
	if _, err := wire.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return wire
}

// Without an orderly close, end closes the socket immediately. It returns when the
// goroutine that writes has ended.
func TestEndOfALostConnectionWaitsForItsWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, began := newStuck(), time.Now()
		c := &connection{amqp: &amqp091.Connection{}, wire: conn.wire(t)}
		time.AfterFunc(time.Minute, func() { close(conn.written) })
		c.end(false)
		if took, after := time.Since(began), conn.closedAt.Sub(began); took != time.Minute || after != 0 {
			t.Errorf("it took %v, and closed the socket after %v; want a minute, and at once", took, after)
		}
	})
}

// After an orderly close, end waits for unwritten bytes for at most one second.
func TestEndOfAClosedConnectionIsBounded(t *testing.T) {
	t.Parallel()
	config := amqp.ConnectionConfig{AmqpURI: testkit.Rabbit(t).URL}
	closed, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Minute, writeTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	closed.end(true)
	synctest.Test(t, func(t *testing.T) {
		conn, began := newStuck(), time.Now()
		conn.released = true
		c := &connection{amqp: closed.amqp, wire: conn.wire(t)}
		c.end(false)
		if took := time.Since(began); took != closeWait {
			t.Errorf("it took %v, want %v", took, closeWait)
		}
	})
}

// tracked is a connection that knows whether it was closed.
type tracked struct {
	net.Conn

	closed atomic.Bool
}

func (c *tracked) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// unknownMechanism is a way to log in that no broker knows.
type unknownMechanism struct{}

func (unknownMechanism) Mechanism() string { return "UNKNOWN" }
func (unknownMechanism) Response() string  { return "" }

// After a failed handshake, package rabbit closes the socket, because neither amqp091
// nor crypto/tls closes it.
func TestFailedHandshakeClosesTheSocket(t *testing.T) {
	t.Parallel()
	var conn *tracked
	config := amqp.ConnectionConfig{AmqpURI: testkit.Rabbit(t).URL, AmqpConfig: &amqp091.Config{
		SASL: []amqp091.Authentication{unknownMechanism{}},
		Dial: func(network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(t.Context(), network, address)
			conn = &tracked{Conn: c}
			return conn, err
		},
	}}
	c, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Minute, writeTimeout: time.Minute})
	if c != nil || !errors.Is(err, amqp091.ErrSASL) || !conn.closed.Load() {
		t.Errorf("got %v and %v, the socket is closed: %t", c, err, conn.closed.Load())
	}

	for _, uri := range []string{"amqps://broker", "amqps://broker?cacertfile=" + t.TempDir() + "/missing"} {
		client, broker := net.Pipe()
		_ = broker.Close()
		conn := &tracked{Conn: client}
		d := dialer{uri: uri, dial: func(string, string) (net.Conn, error) { return conn, nil }}
		if _, err := d.open(t.Context(), "tcp"); err == nil || !conn.closed.Load() {
			t.Errorf("%s: got %v, the socket is closed: %t", uri, err, conn.closed.Load())
		}
	}
}

// A failed attempt to connect leaves no goroutine and no socket.
func TestFailedConnectWaitsForItsWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, began := newStuck(), time.Now()
		config := amqp.ConnectionConfig{AmqpURI: "amqp://broker", AmqpConfig: &amqp091.Config{
			Dial: func(string, string) (net.Conn, error) { return conn, nil },
		}}
		time.AfterFunc(time.Minute, func() { close(conn.written) })
		c, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Second, writeTimeout: time.Minute})
		if c != nil || err == nil || err.Error() != "no connection within 1s" {
			t.Errorf("got %v and %v", c, err)
		}
		if took, after := time.Since(began), conn.closedAt.Sub(began); took != time.Minute || after != time.Second {
			t.Errorf("it took %v, and closed the socket after %v; want a minute and a second", took, after)
		}
	})
}
