package service_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/internal/testkit"
)

// A queue of that name and another kind stops the start, by name.
func TestQueueOfAnotherKind(t *testing.T) {
	broker := testkit.Rabbit(t)
	transport, err := service.NewAMQP(broker.URL, broker.Name("orders"), watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	queue := transport.Queue(service.Subscription{Consumer: "inventory", Topic: service.TopicOrdersPlaced})
	conn, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil { // a classic one
		t.Fatal(err)
	}
	database := postgres(t, testkit.Postgres(t).DSN)
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = service.New(database, transport, &mailer{}, service.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), queue) || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("error %v", err)
	}
}

// Queues that are not there cost time: what is published meanwhile stays in the
// outbox, and is delivered when they are there again.
func TestQueueIsNotBound(t *testing.T) {
	broker := testkit.Rabbit(t)
	namespace := broker.Name("orders")
	database := postgres(t, testkit.Postgres(t).DSN)
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	transport := func() service.Transport {
		transport, err := service.NewAMQP(broker.URL, namespace, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		return transport
	}
	conn, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}

	first := startOn(t, database, transport())
	testkit.Eventually(t, time.Minute, "ready", func() bool {
		return first.do(http.MethodGet, "/health/ready", "").status == http.StatusOK
	})
	if err := channel.ExchangeDelete(namespace+"."+service.TopicOrdersPlaced, false, false); err != nil {
		t.Fatal(err)
	}
	if err := channel.ExchangeDeclare(namespace+"."+service.TopicOrdersPlaced, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	id := first.placed() // no queue is bound to the exchange any more
	testkit.Eventually(t, time.Minute, "it was refused, and waits", func() bool {
		return first.count(`once_outbox WHERE attempts > 0 AND last_error LIKE '%NO_ROUTE%'`) == 1
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := startOn(t, database, transport())
	testkit.Eventually(t, time.Minute, "the next start, which binds the queues, ships it", func() bool {
		return second.details(id).Shipment == "shipped"
	})
}
