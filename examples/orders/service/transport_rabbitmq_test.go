package service_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
)

// broker returns a broker, and deletes the service's queues after the test.
func broker(t *testing.T) testenv.Broker {
	t.Helper()
	b := testenv.RabbitMQ(t)
	for _, to := range service.Subscriptions() {
		exchange := b.Namespace + "." + to.Topic
		b.DeleteAfter(t, exchange, exchange+"."+to.Consumer)
	}
	return b
}

func rabbitMQ(t *testing.T, b testenv.Broker) *service.RabbitMQ {
	t.Helper()
	transport, err := service.NewRabbitMQ(b.URL, b.Namespace, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return transport
}

// The start fails if a queue exists with the right name and another type. The error
// names the queue.
func TestQueueOfAnotherType(t *testing.T) {
	t.Parallel()
	broker := broker(t)
	transport := rabbitMQ(t, broker)
	queue := transport.Queue(service.Subscription{Consumer: "payments", Topic: service.TopicOrdersPlaced})
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, nil) // this declares a classic queue
	if err != nil {
		t.Fatal(err)
	}
	database := postgres(t, testenv.Postgres(t))
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = service.New(database, transport, newWorld().companies(), service.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), queue) || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("error %v", err)
	}
}

// An event that no queue receives stays in the outbox. It is delivered when the queue
// is bound again.
func TestQueueIsNotBound(t *testing.T) {
	t.Parallel()
	broker := broker(t)
	database := postgres(t, testenv.Postgres(t))
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	channel := broker.Channel(t)

	first := startOn(t, database, rabbitMQ(t, broker))
	testenv.Eventually(t, 3*time.Minute, "ready", func() bool {
		return first.do(http.MethodGet, "/health/ready", "").status == http.StatusOK
	})
	exchange := broker.Namespace + "." + service.TopicOrdersPlaced
	if err := channel.ExchangeDelete(exchange, false, false); err != nil {
		t.Fatal(err)
	}
	if err := channel.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	id := first.placed() // no queue is bound to the new exchange
	testenv.Eventually(t, 3*time.Minute, "the broker refused the event, which waits in the outbox", func() bool {
		return first.count(`once_outbox WHERE attempts > 0 AND last_error LIKE '%NO_ROUTE%'`) == 1
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := startOn(t, database, rabbitMQ(t, broker))
	testenv.Eventually(t, 3*time.Minute, "the next start binds the queues, and the order is shipped", func() bool {
		return second.details(id).Shipment == "shipped"
	})
}
