package testkit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/servers"
)

// Broker is a new, empty virtual host of RabbitMQ. It is deleted when its test ends. If
// no virtual host can be created, because rabbitmqctl is missing or refuses the user, it
// is the virtual host of AMQP_URL. So take all names from [Broker.Name].
type Broker struct {
	// URL is the AMQP URL of the virtual host.
	URL string

	// VHost is the virtual host's name.
	VHost string

	ctl servers.Ctl
}

// Rabbit returns a new virtual host on a shared broker. Use [PrivateRabbit] for a broker
// that the test may kill.
func Rabbit(t testing.TB) Broker {
	t.Helper()
	server, err := rabbitServer()
	if err != nil {
		Without(t, err)
	}
	if server.ctl == nil {
		return Broker{URL: server.url, VHost: server.vhost}
	}

	broker := Broker{VHost: uniqueName(vhostPrefix, "-"), ctl: server.ctl}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := server.deleteVHost(ctx, broker.VHost); err != nil {
			t.Errorf("testkit: %v", err)
		}
	})
	broker.URL, err = server.addVHost(t.Context(), broker.VHost)
	if err != nil {
		t.Fatalf("testkit: virtual host %s: %v", broker.VHost, err)
	}
	return broker
}

// Name returns a unique name for an exchange or a queue.
func (b Broker) Name(name string) string { return uniqueName(name, "-") }

// Ctl runs rabbitmqctl for the broker and returns its output. Add the arguments
// "--vhost", b.VHost for commands on this virtual host. Without rabbitmqctl the test is
// skipped.
func (b Broker) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	if b.ctl == nil {
		Without(t, errors.New("testkit: there is no rabbitmqctl for this broker: set RABBITMQCTL"))
	}
	output, err := b.ctl.Run(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}
