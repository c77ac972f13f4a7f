package rabbit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

// A configured timeout has priority over the timeout in the URI, which has priority over
// the default.
func TestTimesOfAConnection(t *testing.T) {
	t.Parallel()
	reconnect := &amqp.ReconnectConfig{BackoffInitialInterval: 2 * time.Second, BackoffMaxInterval: 3 * time.Second}
	for name, c := range map[string]struct {
		uri       string
		reconnect *amqp.ReconnectConfig
		set, want connectionTimes
	}{
		"defaults": {
			"amqp://broker", nil,
			connectionTimes{},
			connectionTimes{10 * time.Second, 10 * time.Second, 100 * time.Millisecond, 10 * time.Second},
		},
		"the URI and Reconnect": {
			"amqp://broker?connection_timeout=7000", reconnect,
			connectionTimes{},
			connectionTimes{7 * time.Second, 10 * time.Second, 2 * time.Second, 3 * time.Second},
		},
		"all are set": {
			"amqp://broker?connection_timeout=7000", reconnect,
			connectionTimes{dial: 1, write: 2},
			connectionTimes{1, 2, 2 * time.Second, 3 * time.Second},
		},
		"a long pause": {
			"amqp://broker", &amqp.ReconnectConfig{BackoffInitialInterval: time.Minute},
			connectionTimes{},
			connectionTimes{10 * time.Second, 10 * time.Second, time.Minute, time.Minute},
		},
		"an invalid URI": {
			"broker", nil,
			connectionTimes{},
			connectionTimes{10 * time.Second, 10 * time.Second, 100 * time.Millisecond, 10 * time.Second},
		},
	} {
		if got := c.set.withDefaults(amqp.ConnectionConfig{AmqpURI: c.uri, Reconnect: c.reconnect}); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// The error names the mistake in the URI, but quotes no part that could contain the
// password.
func TestErrorOfAURINamesTheMistake(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"":                        "Connection.AmqpURI is empty",
		"http://broker":           "must start with amqp:// or amqps://",
		"broker:5672":             "must start with amqp:// or amqps://",
		"amqp://user:pass word@b": "contains white space",
		"amqps://b/a\tb":          "contains white space",
		"amqp://broker:port":      "is invalid (not shown here",
		"amqps://broker:port":     "is invalid (not shown here",
	} {
		if err := validateConnection(amqp.ConnectionConfig{AmqpURI: uri}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", uri, err, want)
		}
	}
	both := amqp.ConnectionConfig{AmqpURI: "amqp://broker", TLSConfig: &tls.Config{}, AmqpConfig: &amqp091.Config{}}
	kit.Check(t, validateConnection(both))
	both.AmqpConfig.TLSClientConfig = &tls.Config{}
	if err := validateConnection(both); err == nil || !strings.Contains(err.Error(), "are both set") {
		t.Errorf("with two TLS configurations: %v", err)
	}
	both.TLSConfig = nil
	kit.Check(t, validateConnection(both))
}

// amqp091 writes to its settings, so it gets a copy. A setting without a value is set
// from the other fields of the config or from the URI.
func TestSettingsOfAConnectionAreCopied(t *testing.T) {
	t.Parallel()
	config := amqp.ConnectionConfig{AmqpURI: "amqp://broker?channel_max=77", TLSConfig: &tls.Config{ServerName: "outer"}}
	got := connectionSettings(config)
	if got.Locale != "en_US" || got.ChannelMax != 77 || got.TLSClientConfig.ServerName != "outer" ||
		got.TLSClientConfig == config.TLSConfig {
		t.Errorf("got %+v", got)
	}
	own := &amqp091.Config{
		Locale: "de_DE", ChannelMax: 5, Properties: amqp091.Table{"a": "b"}, TLSClientConfig: &tls.Config{ServerName: "inner"},
	}
	config.AmqpConfig = own
	got = connectionSettings(config)
	if got.Locale != "de_DE" || got.ChannelMax != 5 || got.TLSClientConfig.ServerName != "inner" ||
		got.TLSClientConfig == own.TLSClientConfig {
		t.Errorf("got %+v", got)
	}
	got.Properties["c"] = "d"
	if len(own.Properties) != 1 {
		t.Errorf("the caller's properties are changed: %v", own.Properties)
	}
	if got := connectionSettings(amqp.ConnectionConfig{AmqpURI: "broker"}); got.ChannelMax != 0 || got.TLSClientConfig != nil {
		t.Errorf("without anything set: got %+v", got)
	}
}

// The files that a URI names are used. If a file cannot be used, the error names the
// parameter of the URI.
func TestTLSFilesOfAURI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	empty := filepath.Join(dir, "empty")
	kit.OK(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		uri  amqp091.URI
		want string
	}{
		"no file":             {amqp091.URI{ServerName: "name"}, ""},
		"a missing authority": {amqp091.URI{CACertFile: missing}, "cacertfile: open "},
		"an empty authority":  {amqp091.URI{CACertFile: empty}, "cacertfile: the file has no certificate in PEM format"},
		"a missing key":       {amqp091.URI{CertFile: empty, KeyFile: missing}, "certfile and keyfile: open "},
		"only a certificate":  {amqp091.URI{ServerName: "name", CertFile: missing}, ""},
		"only a key":          {amqp091.URI{ServerName: "name", KeyFile: missing}, ""},
	} {
		got, err := tlsConfig(c.uri)
		switch {
		case c.want == "" && (err != nil || got.ServerName != "name" || got.RootCAs != nil || got.Certificates != nil):
			t.Errorf("%s: got %+v, %v", name, got, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// amqp091 gets an address without TLS, because the network connection itself does TLS.
func TestAMQPDoesNoTLSItself(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"amqps://u:p@host:1/v": "amqp://u:p@host:1/v", "amqp://host": "amqp://host", "amqp://amqps:x@host": "amqp://amqps:x@host",
	} {
		if got := (dialer{uri: uri}).withoutTLS(); got != want {
			t.Errorf("%s becomes %s, want %s", uri, got, want)
		}
	}
	if _, err := (dialer{uri: "broker"}).open(t.Context(), "tcp"); err == nil {
		t.Error("an invalid URI is dialled")
	}
	failed := errors.New("no network")
	_, err := dialer{uri: "amqps://host", to: address{"host", "host:5671"}, dial: func(network, address string) (net.Conn, error) {
		if network != "net" || address != "host:5671" {
			t.Errorf("dials %s %s", network, address)
		}
		return nil, failed
	}}.open(t.Context(), "net")
	if !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of Dial", err)
	}
	// If the certificate of the authority cannot be read, the connection is closed.
	ours, theirs := net.Pipe()
	_, err = dialer{uri: "amqps://host?cacertfile=/no/such/file", dial: func(string, string) (net.Conn, error) { return ours, nil }}.
		open(t.Context(), "tcp")
	if err == nil || !strings.Contains(err.Error(), "cacertfile") {
		t.Errorf("got %v, want an error about cacertfile", err)
	}
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}

// A connection that lasted at least as long as the longest pause between attempts
// counts as a success.
func TestConnectionThatLastsResetsThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := retryPause{time.Second, time.Minute}
		began := time.Now()
		pass(time.Minute - 1)
		if n := p.failures(3, began); n != 4 {
			t.Errorf("before it has lasted long enough, %d attempts have failed, want 4", n)
		}
		pass(1)
		if n := p.failures(3, began); n != 0 {
			t.Errorf("after it has lasted long enough, %d attempts have failed, want 0", n)
		}
		began = time.Now()
		if !p.wait(t.Context(), 0) || time.Since(began) != 0 {
			t.Errorf("the first attempt waits for %v", time.Since(began))
		}
		if !p.wait(t.Context(), 1) || time.Since(began) < time.Second/2 || time.Since(began) > time.Second {
			t.Errorf("the second attempt waits for %v", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		for range 100 { // repeated, because select chooses at random if both channels are ready
			if sleep(ctx, 0) || sleep(ctx, time.Hour) {
				t.Fatal("it waits although the context has ended")
			}
		}
		if time.Since(began) != 0 {
			t.Errorf("it waits for %v although the context has ended", time.Since(began))
		}
	})
}

// pass lets time pass on the clock of synctest.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // on the clock of synctest

// bare returns a connection that only has a socket.
func bare(heartbeat time.Duration) *connection {
	ours, _ := net.Pipe()
	return &connection{
		wire: amqpwire.NewConn(ours, amqpwire.Config{WriteTimeout: time.Hour}), timeout: time.Minute,
		amqp: &amqp091.Connection{Config: amqp091.Config{Heartbeat: heartbeat}},
	}
}

// Package rabbit must set a deadline for each request, because amqp091 sets none. There
// is one exception: a request that waits for a queue has no deadline, because a stuck
// queue must not make the other queues lose their connection. Heartbeats detect a
// broker that does not respond. Without heartbeats, a request that waits for a queue
// must have a deadline, too.
func TestRequestsHaveADeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heartbeat time.Duration
		request   func(c *connection, f func() error) error
		limited   bool
	}{
		"request": {time.Second, func(c *connection,
			f func() error,
		) error {
			return c.request(context.Background(), f)
		}, true},
		"request of a queue":                {time.Second, (*connection).longRequest, false},
		"request of a queue, no heartbeats": {0, (*connection).longRequest, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := bare(c.heartbeat)
			failed := errors.New("failed")
			took := time.Minute - 1
			f := func() error { pass(took); return failed }
			if err := c.request(conn, f); !errors.Is(err, failed) || conn.wire.Failure() != nil {
				t.Errorf("%s: got %v, and the connection failed with %v", name, err, conn.wire.Failure())
			}
			took = time.Minute + 1
			if err := c.request(conn, f); !errors.Is(err, failed) {
				t.Errorf("%s: got %v", name, err)
			}
			synctest.Wait()
			switch err := conn.wire.Failure(); {
			case c.limited && (err == nil || err.Error() != "the broker did not reply within 1m0s"):
				t.Errorf("%s: after its deadline the connection failed with %v", name, err)
			case !c.limited && err != nil:
				t.Errorf("%s: it has a deadline: %v", name, err)
			}
			conn.wire.Abort(net.ErrClosed)
			<-conn.wire.Done()
		})
	}
}

// If the network connection knows why it failed, closeReason returns this reason, because
// amqp091 only guesses a reason. No reason contains credentials.
func TestReasonOfALostConnection(t *testing.T) {
	t.Parallel()
	conn := bare(0)
	if err := conn.closeReason(nil, false); !errors.Is(err, errConnectionClosed) {
		t.Errorf("got %v, want %v", err, errConnectionClosed)
	}
	lost := &amqp091.Error{Code: 320, Reason: "amqp://user:secret@host"}
	if err := conn.closeReason(lost, true); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want the reason without the password", err)
	}
	failed := errors.New("our reason")
	conn.wire.Abort(failed)
	if err := conn.closeReason(lost, true); !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
	<-conn.wire.Done()
}

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
	kit.OK(t, kit.Err(wire.Write([]byte("AMQP\x00\x00\x09\x01"))))
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
	config := amqp.ConnectionConfig{AmqpURI: kit.Rabbit(t).URL}
	closed, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Minute, writeTimeout: time.Minute, nodes: newNodes(nil)})
	kit.OK(t, err)
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
	config := amqp.ConnectionConfig{AmqpURI: kit.Rabbit(t).URL, AmqpConfig: &amqp091.Config{
		SASL: []amqp091.Authentication{unknownMechanism{}},
		Dial: func(network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(t.Context(), network, address)
			conn = &tracked{Conn: c}
			return conn, err
		},
	}}
	c, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Minute, writeTimeout: time.Minute, nodes: newNodes(nil)})
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
		c, err := connect(t.Context(), config, dialSettings{dialTimeout: time.Second, writeTimeout: time.Minute, nodes: newNodes(nil)})
		if c != nil || err == nil || err.Error() != "no connection within 1s" {
			t.Errorf("got %v and %v", c, err)
		}
		if took, after := time.Since(began), conn.closedAt.Sub(began); took != time.Minute || after != time.Second {
			t.Errorf("it took %v, and closed the socket after %v; want a minute and a second", took, after)
		}
	})
}

func TestPauseDoublesFromTheLowerToTheUpperBound(t *testing.T) {
	const low, high = 100 * time.Millisecond, time.Second
	for failed, longest := range []time.Duration{0, low, 2 * low, 4 * low, 8 * low, high, high} {
		for range 100 {
			if got := pauseAfter(failed, low, high); got < longest/2 || got > longest {
				t.Fatalf("the pause after %d failures is %v, want %v to %v", failed, got, longest/2, longest)
			}
		}
	}
	if got := pauseAfter(1<<30, low, high); got < high/2 || got > high {
		t.Errorf("the pause after 1<<30 failures is %v, want %v to %v", got, high/2, high)
	}
}
