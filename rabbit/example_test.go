package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// You can create a publisher while the broker is not reachable. Your own interfaces
// classify its errors.
func ExampleNewPublisher() {
	config := amqp.NewDurablePubSubConfig("amqp://guest:guest@127.0.0.1:1/", nil) // no broker listens there
	config.Marshaler = rabbit.Marshaler{}
	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{ReadyTimeout: time.Millisecond})
	if err != nil {
		panic(err)
	}
	defer publisher.Close()

	err = publisher.Publish("orders.placed", message.NewMessage("id-1", []byte("{}")))
	var (
		refused  interface{ Refused() bool }
		hopeless interface{ Unacceptable() bool }
	)
	switch {
	case err == nil:
		fmt.Println("routed, persisted and confirmed")
	case errors.As(err, &refused) && refused.Refused():
		fmt.Println("try later, a limited number of times")
	case errors.As(err, &hopeless) && hopeless.Unacceptable():
		fmt.Println("dead-letter it")
	default:
		fmt.Println("send it again with the same id")
	}
	// Output: send it again with the same id
}

// You can create a subscriber while the broker is not reachable. The subscriber begins to
// consume when it is connected.
func ExampleNewSubscriber() {
	config := amqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:1/") // no broker listens there
	config.Marshaler = rabbit.Marshaler{}
	subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{ReadyTimeout: time.Millisecond})
	if err != nil {
		panic(err)
	}
	messages, err := subscriber.Subscribe(context.Background(), "orders.placed")
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			msg.Ack() // handled
		}
	}()

	err = subscriber.Close() // waits for the messages in handlers
	<-done
	fmt.Println(err)
	// Output: <nil>
}

// All events go through one topic exchange. The topic of a message is its routing key,
// here the type of the event. The topic of a subscription is a pattern.
func ExampleTopicExchange() {
	config := rabbit.TopicExchange("amqp://guest:guest@127.0.0.1/", "shop", "billing")
	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	if err != nil {
		panic(err)
	}
	defer publisher.Close()

	const published, subscribed = "orders.placed", "orders.*"
	fmt.Println("exchange:", config.Exchange.GenerateName(published), config.Exchange.Type)
	fmt.Println("routing key:", config.Publish.GenerateRoutingKey(published))
	queue := config.Queue.GenerateName(subscribed)
	fmt.Println("queue:", queue, "bound by", config.QueueBind.GenerateRoutingKey(queue))
	// Output:
	// exchange: shop topic
	// routing key: orders.placed
	// queue: orders.*_billing bound by orders.*
}

// The outbox refuses messages that RabbitMQ cannot take, before they are stored.
func ExampleCheck() {
	events, err := outbox.New(outbox.Config{Check: rabbit.Check})
	if err != nil {
		panic(err)
	}
	_ = events // events.InTx(ctx, db, ...) refuses this message in your transaction:

	msg := message.NewMessage("id-1", nil)
	msg.Metadata.Set("x-request-id", "17")
	fmt.Println(rabbit.Check("orders.placed", msg))
	// Output: rabbit: invalid: metadata "x-request-id" would control RabbitMQ: rename it
}

// Metadata cannot control the broker, and Unmarshal reads every header.
func ExampleMarshaler() {
	msg := message.NewMessage("id-1", []byte("{}"))
	msg.Metadata.Set("tenant", "acme")
	msg.Metadata.Set("BCC", "somebody-elses-queue")
	sent, _ := rabbit.Marshaler{}.Marshal(msg)

	sent.Headers["x-death"] = []any{amqp091.Table{"queue": "q", "count": int64(2)}} // the broker adds such a header
	got, err := rabbit.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: sent.Headers, Body: sent.Body})

	fmt.Println(got.UUID, got.Metadata.Get("tenant"), got.Metadata.Get("x-death"), err)
	fmt.Printf("BCC: %q, redelivered: %s\n", got.Metadata.Get("BCC"), got.Metadata.Get("once_redelivered"))
	// Output:
	// id-1 acme [{"count":2,"queue":"q"}] <nil>
	// BCC: "", redelivered: false
}
