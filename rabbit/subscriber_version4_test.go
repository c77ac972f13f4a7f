package rabbit_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
)

// rabbit4 starts a broker of version 4. RABBITMQ4_BIN is the directory that contains
// its rabbitmq-server and rabbitmqctl. A suitable Erlang must be in PATH.
func rabbit4(t *testing.T) *servers.Rabbit {
	t.Helper()
	dir := os.Getenv("RABBITMQ4_BIN")
	if dir == "" {
		testkit.WithoutOptional(t, "RABBITMQ4_BIN", errors.New("the folder of a rabbitmq-server of version 4 is not known"))
	}
	broker, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{BinDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})
	return broker
}

// Trap 97. Since RabbitMQ 4.0, a quorum queue without arguments drops a message after 20
// deliveries. A queue that the Subscriber declares does not drop messages. If the queue
// was declared earlier without x-delivery-limit, the Subscriber can only log the limit.
func TestTrap97_RequeuedMessagesAreNotDropped(t *testing.T) {
	broker := rabbit4(t)
	uri := broker.URL("/")
	cfg := brisk
	cfg.NackMin, cfg.NackMax = time.Millisecond, time.Millisecond
	config := queueConfig(uri)
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}

	returns := func(queue string) *heard {
		h := new(heard)
		cfg.Logger = h
		s := newSubscriber(t, config, cfg)
		if err := s.SubscribeInitialize(queue); err != nil {
			t.Fatal(err)
		}
		messages := subscribe(t, s, queue)
		send(t, uri, queue, "m")
		for range 30 {
			receive(t, messages).Nack()
		}
		receive(t, messages).Ack()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		return h
	}
	if h := returns("new"); h.said(dropsLine) != 0 {
		t.Errorf("the limit is logged: %q", h.all())
	}
	returns("new") // the queue exists now

	// This queue was declared before the upgrade, without a limit.
	older := declareQueue(t, uri, config.Queue.Arguments)
	_, err := broker.Ctl(t.Context(), "set_policy", "no-limit", "^"+older+"$", `{"delivery-limit":-1}`, "--apply-to", "queues")
	if err != nil {
		t.Fatal(err)
	}
	h := returns(older) // the queue has the policy that the log line names
	if h.said(dropsLine) != 1 || !strings.Contains(strings.Join(h.all(), ""), `'{"delivery-limit":-1}' --apply-to queues`) {
		t.Errorf("the limit is not logged: %q", h.all())
	}
}
