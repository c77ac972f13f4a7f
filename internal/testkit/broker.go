package testkit

import (
	"errors"
	"testing"

	"github.com/watermill-once/once/internal/servers"
)

// Broker is a new, empty virtual host of RabbitMQ. It is deleted after its test ends.
// Without a usable rabbitmqctl, no virtual host can be created. The Broker is then the
// virtual host of AMQP_URL. Other tests use that virtual host too, so take all names
// from [Broker.Name].
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

	name, address, err := server.addVHost(t.Context())
	if name != "" {
		t.Cleanup(func() { server.deleteVHost(name) })
	}
	if err != nil {
		t.Fatalf("testkit: virtual host %s: %v", name, err)
	}
	return Broker{URL: address, VHost: name, ctl: server.ctl}
}

// Name returns a unique name for an exchange or a queue.
func (b Broker) Name(name string) string { return uniqueName(name, "-") }

// Ctl runs rabbitmqctl for the broker and returns the output. For a command on this
// virtual host, add the arguments "--vhost", b.VHost. Without rabbitmqctl, Ctl skips
// the test.
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
