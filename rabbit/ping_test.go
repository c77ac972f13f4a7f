package rabbit_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
					testkit.Waits(t, c.text, ping)
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
	testkit.Long(t)
	t.Parallel()
	broker := testkit.PrivateRabbitInTurn(t)
	broker.Kill()
	all := pingers(t, broker.URL("/"))
	results := make(chan error, len(all))
	for _, p := range all {
		go func() { results <- p.Ping(t.Context()) }()
	}
	restart(t, broker)
	for range all {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
