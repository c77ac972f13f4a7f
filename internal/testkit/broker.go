package testkit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/servers"
)

// Broker is a new, empty virtual host of RabbitMQ, which is gone when its test
// ends. Where none can be made, because there is no rabbitmqctl or it refuses
// us, it is the virtual host of AMQP_URL: so take all names from
// [Broker.Name].
type Broker struct {
	// URL is the AMQP URL of the virtual host.
	URL string

	// VHost is the virtual host's name.
	VHost string

	ctl servers.Ctl
}

// Rabbit returns a new virtual host on a broker that others use too: see
// [PrivateRabbit] for one that may be killed.
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

// Name returns a name for an exchange or a queue that nobody else has.
func (b Broker) Name(name string) string { return uniqueName(name, "-") }

// Ctl runs rabbitmqctl against the broker and returns what it wrote; for this
// virtual host only with the arguments "--vhost", b.VHost. A test that has no
// rabbitmqctl is skipped.
func (b Broker) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	if b.ctl == nil {
		Without(t, errors.New("testkit: there is no rabbitmqctl for this broker; RABBITMQCTL can name it"))
	}
	output, err := b.ctl.Run(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}
