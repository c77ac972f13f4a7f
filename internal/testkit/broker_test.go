package testkit_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

func TestVirtualHostIsNew(t *testing.T) {
	onlyAgain(t)
	broker, other := testkit.Rabbit(t), testkit.Rabbit(t)
	if broker.VHost == other.VHost {
		t.Errorf("two tests have the virtual host %q", broker.VHost)
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
	t.Logf("host %q", broker.VHost)
}

func TestVirtualHostIsNewAndDeletedAfterItsTests(t *testing.T) {
	observer := testkit.Rabbit(t)
	vhosts := func() string { return observer.Ctl(t, "--quiet", "list_vhosts", "name") }
	before := vhosts() // skips the test without rabbitmqctl
	output, err := rerun(t, "TestVirtualHostIsNew")
	_, rest, _ := strings.Cut(output, `host "`)
	vhost, _, _ := strings.Cut(rest, `"`)
	if err != nil || vhost == "" || strings.Contains(before, vhost) {
		t.Errorf("the virtual host is %q (%v); before, there were %q\n%s", vhost, err, before, output)
	}
	if after := vhosts(); strings.Contains(after, vhost) {
		t.Errorf("%s is left: %q", vhost, after)
	}
}

func TestNamesAreUnique(t *testing.T) {
	broker := testkit.Rabbit(t)
	if a, b := broker.Name("orders"), broker.Name("orders"); a == b || !strings.HasPrefix(a, "orders-") {
		t.Errorf("the names are %q and %q", a, b)
	}
}
