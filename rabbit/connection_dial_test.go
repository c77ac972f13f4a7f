package rabbit_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	certified := httptest.NewTLSServer(nil) // its certificate is used below
	defer certified.Close()
	config := queueConfig(tlsProxy(t, uri, certified.TLS.Certificates))

	distrustful := newPublisher(t, config, rabbit.PublisherConfig{ReadyTimeout: time.Millisecond})
	var err error
	eventually(t, "the certificate is refused", func() bool {
		err = distrustful.Publish(queue, newMessage("m"))
		mustBe(t, "unavailable", err)
		return strings.Contains(err.Error(), "certificate")
	})

	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	config.Connection.TLSConfig = &tls.Config{RootCAs: roots}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "confirmed", p.Publish(queue, numbered("m", 2000)...))
	if name := config.Connection.TLSConfig.ServerName; name != "" {
		t.Errorf("the caller's TLS config was changed: ServerName is %s", name)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if got := drain(t, uri, queue); len(got) != 2000 {
		t.Errorf("%d in the queue, want 2000", len(got))
	}
}

// tlsProxy accepts TLS connections, and relays them to the broker. It returns the URL
// of the proxy.
func tlsProxy(t *testing.T, uri string, certificates []tls.Certificate) string {
	t.Helper()
	target, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	broker := target.Host
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certificates})
	if err != nil {
		t.Fatal(err)
	}
	accept(t, listener, func(client net.Conn) { proxy(client, broker) })
	target.Scheme, target.Host = "amqps", listener.Addr().String()
	return target.String()
}

// accept calls handle for each connection to the listener, until the test ends.
func accept(t *testing.T, listener net.Listener, handle func(client net.Conn)) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { handle(client) })
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(func() { _ = listener.Close() })
}

func proxy(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	_, _ = io.Copy(server, client)
}

// Trap 13. Connecting fails at its deadline if a server accepts the connection and then
// sends nothing.
func TestTrap13_ConnectingHasADeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := queueConfig("amqp://" + listener.Addr().String())

	p := newPublisher(t, config, rabbit.PublisherConfig{DialTimeout: 10 * time.Millisecond, ReadyTimeout: time.Millisecond})
	eventually(t, "an error with the timeout", func() bool {
		return strings.Contains(p.Publish("q", newMessage("m")).Error(), "no connection within 10ms")
	})

	p = newPublisher(t, config, rabbit.PublisherConfig{DialTimeout: time.Hour})
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := p.Close(); err != nil { // Close must not wait for an hour
		t.Error(err)
	}
}

func TestConfiguredDialIsUsed(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	var dialled atomic.Int64
	config := queueConfig(uri)
	config.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
		dialled.Add(1)
		return net.Dial(network, address)
	}}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "confirmed", p.Publish(queue, newMessage("m")))
	if n := dialled.Load(); n != 1 {
		t.Errorf("dialled %d times, want once", n)
	}
}
