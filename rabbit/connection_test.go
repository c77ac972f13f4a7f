package rabbit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
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
	kit.Check(t, p.Close())
	if got := drain(t, uri, queue); len(got) != 2000 {
		t.Errorf("%d in the queue, want 2000", len(got))
	}
}

// tlsProxy accepts TLS connections, and relays them to the broker. It returns the URL
// of the proxy.
func tlsProxy(t *testing.T, uri string, certificates []tls.Certificate) string {
	t.Helper()
	target, err := url.Parse(uri)
	kit.OK(t, err)
	broker := target.Host
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certificates})
	kit.OK(t, err)
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

// proxy relays between a client and the first of the addresses that accepts a connection.
func proxy(client net.Conn, addresses ...string) {
	defer client.Close()
	var server net.Conn
	for i := 0; server == nil; i++ {
		if i == len(addresses) {
			return
		}
		server, _ = net.Dial("tcp", addresses[i])
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
	kit.OK(t, err)
	defer listener.Close()
	config := queueConfig("amqp://" + listener.Addr().String())

	p := newPublisher(t, config, rabbit.PublisherConfig{DialTimeout: 10 * time.Millisecond, ReadyTimeout: time.Millisecond})
	eventually(t, "an error with the timeout", func() bool {
		return strings.Contains(p.Publish("q", newMessage("m")).Error(), "no connection within 10ms")
	})

	p = newPublisher(t, config, rabbit.PublisherConfig{DialTimeout: time.Hour})
	conn, err := listener.Accept()
	kit.OK(t, err)
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

type pinger interface {
	Ping(ctx context.Context) error
	Close() error
}

// pingers returns a Publisher and a Subscriber that connect to uri.
func pingers(t *testing.T, uri string) map[string]pinger {
	t.Helper()
	config := queueConfig(uri)
	return map[string]pinger{
		"publisher":  newPublisher(t, config, rabbit.PublisherConfig{}),
		"subscriber": newSubscriber(t, config, rabbit.SubscriberConfig{}),
	}
}

func changed(t *testing.T, uri string, change func(u *url.URL)) (_, host string) {
	t.Helper()
	u, err := url.Parse(uri)
	kit.OK(t, err)
	change(u)
	return u.String(), u.Host
}

// Ping returns an error that names the mistake in the address. Depending on the
// mistake, it returns the error immediately or when the context ends.
func TestPingNamesTheReason(t *testing.T) {
	t.Parallel()
	good := brokerURL(t)
	password, host := changed(t, good, func(u *url.URL) { u.User = url.UserPassword("guest", "canary-password") })
	vhost, _ := changed(t, good, func(u *url.URL) { u.Path, u.RawPath = "/no-such-vhost", "" })
	plain, _ := changed(t, good, func(u *url.URL) { u.Scheme = "amqps" })
	closed, closedHost := changed(t, good, func(u *url.URL) { u.Host = "127.0.0.1:1" })
	certified := httptest.NewTLSServer(nil) // its certificate is not trusted
	t.Cleanup(certified.Close)
	strange := tlsProxy(t, good, certified.TLS.Certificates)
	_, strangeHost := changed(t, strange, func(*url.URL) {})

	for name, c := range map[string]struct {
		uri   string
		waits bool // the error is returned when the context ends
		text  string
	}{
		"password": {
			password, false, "rabbit: RabbitMQ at " + host + " refuses the login; check user and password in Connection.AmqpURI: " +
				`Exception (403) Reason: "username or password not allowed"`,
		},
		"vhost": {
			vhost, false, "rabbit: RabbitMQ at " + host + ` refuses virtual host "no-such-vhost"; create it with rabbitmqctl add_vhost, ` +
				"and give the user rights with rabbitmqctl set_permissions: " +
				`Exception (530) Reason: "NOT_ALLOWED - vhost no-such-vhost not found"`,
		},
		"TLS to a port without TLS": {
			plain, false, "rabbit: no TLS connection to RabbitMQ at " + host + "; check Connection.TLSConfig, the broker's certificate, " +
				"and that the port is the one for TLS: tls: first record does not look like a TLS handshake",
		},
		"certificate": {
			strange, false, "rabbit: no TLS connection to RabbitMQ at " + strangeHost + "; check Connection.TLSConfig, the broker's certificate, " +
				"and that the port is the one for TLS: tls: failed to verify certificate: x509: certificate signed by unknown authority",
		},
		"closed port": {
			closed, true, "rabbit: no connection to RabbitMQ at " + closedHost + "; check host and port in Connection.AmqpURI, " +
				"and that the broker runs: dial tcp 127.0.0.1:1: connect: connection refused",
		},
	} {
		for who, p := range pingers(t, c.uri) {
			t.Run(name+", "+who, func(t *testing.T) {
				var err error
				ping := func(ctx context.Context) error {
					err = p.Ping(ctx)
					return err
				}
				if c.waits {
					kit.Waits(t, c.text, ping)
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					_ = ping(ctx)
				}
				if err == nil {
					t.Fatal("no error")
				}
				want := c.text
				if c.waits {
					want += "\ncontext deadline exceeded"
				}
				if err.Error() != want {
					t.Errorf("got  %s\nwant %s", err, want)
				}
				if errors.Is(err, context.DeadlineExceeded) != c.waits {
					t.Errorf("got %v, ended by the context: want %v", err, c.waits)
				}
			})
		}
	}
}

func TestPingWaitsForTheBroker(t *testing.T) {
	for who, p := range pingers(t, brokerURL(t)) {
		if err := p.Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if err := p.Ping(t.Context()); err != nil { // Ping may be called again
			t.Errorf("%s: %v", who, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if err := p.Ping(t.Context()); !errors.Is(err, rabbit.ErrClosed) || err.Error() != "rabbit: closed" {
			t.Errorf("%s: closed: %v", who, err)
		}
	}
}

// Ping also succeeds if the broker starts after Ping was called.
func TestPingWaitsForABrokerThatStarts(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	broker.Kill()
	all := pingers(t, broker.URL("/"))
	results := make(chan error, len(all))
	for _, p := range all {
		go func() { results <- p.Ping(t.Context()) }()
	}
	restart(t, broker)
	for range all {
		kit.Check(t, <-results)
	}
}

// If an exchange exists that differs only in its durability, the Publisher and the
// Subscriber use it as it is.
func TestExchangeWithOtherDurabilityIsUsed(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	for name, durable := range map[string]bool{"durable": true, "transient": false} {
		topic := uniqueName(name)
		kit.OK(t, admin(t, uri).ExchangeDeclare(topic, "fanout", durable, false, false, false, nil))
		config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName)
		config.Exchange.Durable = !durable
		messages := subscribe(t, newSubscriber(t, config, brisk), topic)
		if err := newPublisher(t, config, rabbit.PublisherConfig{}).Publish(topic, newMessage("m")); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		receive(t, messages).Ack()
	}
}

// If a queue or an exchange exists with another value, the error names the field of the
// configuration.
func TestErrorOfAnExistingQueueNamesTheField(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	existing := func() amqp.Config {
		config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicName)
		config.Exchange.Arguments = amqp091.Table{"alternate-exchange": "a"}
		config.Queue.Arguments = amqp091.Table{"x-max-length": int32(10)}
		return config
	}
	for field, change := range map[string]func(config *amqp.Config){
		`Queue.Arguments["x-max-length"]`: func(config *amqp.Config) { config.Queue.Arguments = nil },
		`Queue.AutoDelete`:                func(config *amqp.Config) { config.Queue.AutoDelete = true },
		`Exchange.Type`:                   func(config *amqp.Config) { config.Exchange.Type = "topic" },
		`Exchange.Internal`:               func(config *amqp.Config) { config.Exchange.Internal = true },
		`Exchange.Arguments["alternate-exchange"]`: func(config *amqp.Config) {
			config.Exchange.Arguments = amqp091.Table{"alternate-exchange": "b"}
		},
	} {
		topic := uniqueName("t")
		kit.OK(t, newSubscriber(t, existing(), brisk).SubscribeInitialize(topic))
		config := existing()
		change(&config)
		_, err := newSubscriber(t, config, brisk).Subscribe(t.Context(), topic)
		want := "exists: set " + field + " of this configuration to its current value, or delete the "
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Subscribe returns %v, want %q", err, want)
		}
		if !strings.HasPrefix(field, "Exchange") {
			continue
		}
		err = newPublisher(t, config, rabbit.PublisherConfig{}).Publish(topic, newMessage("m"))
		mustBe(t, "refused", err)
		mustHaveCode(t, amqp091.PreconditionFailed, err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Publish returns %v, want %q", err, want)
		}
	}
}
