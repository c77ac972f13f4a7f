package testkit_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

func TestVirtualHostIsNewAndDeletedAfterItsTest(t *testing.T) {
	observer := testkit.Rabbit(t)
	vhosts := func() string { return observer.Ctl(t, "--quiet", "list_vhosts", "name") }
	vhosts() // skips the test without rabbitmqctl
	var vhost string
	t.Run("test", func(t *testing.T) {
		broker := testkit.Rabbit(t)
		vhost = broker.VHost
		if vhost == observer.VHost || !strings.Contains(vhosts(), vhost) {
			t.Errorf("the virtual host is %q; there are %q", vhost, vhosts())
		}
		conn, err := amqp.Dial(broker.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		channel, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := channel.QueueDeclare(broker.Name("q"), true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	})
	if strings.Contains(vhosts(), vhost) {
		t.Errorf("%q is left: %q", vhost, vhosts())
	}
}

func TestNamesAreUnique(t *testing.T) {
	broker := testkit.Rabbit(t)
	if a, b := broker.Name("orders"), broker.Name("orders"); a == b || !strings.HasPrefix(a, "orders-") {
		t.Errorf("the names are %q and %q", a, b)
	}
}
