package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rawWindow is the number of outstanding confirms beyond which the rate no
// longer grows.
const rawWindow = 1000

// measureRaw publishes with nothing in between: one channel, a window of
// outstanding confirms, a plain socket. It is the ceiling.
func measureRaw(ctx context.Context, _ options, b *broker, messages int) (float64, error) {
	conn, err := amqp.Dial(b.url)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	if err := channel.Confirm(false); err != nil {
		return 0, err
	}
	publishings := make([]amqp.Publishing, messages)
	for i := range publishings {
		msg := newMessage()
		headers := amqp.Table{"_watermill_message_uuid": msg.UUID}
		for key, value := range msg.Metadata {
			headers[key] = value
		}
		publishings[i] = amqp.Publishing{Headers: headers, Body: msg.Payload, DeliveryMode: amqp.Persistent}
	}

	start := time.Now()
	outstanding := make(chan *amqp.DeferredConfirmation, rawWindow)
	settled := make(chan error, 1)
	go func() {
		var failed error
		for confirmation := range outstanding {
			if !confirmation.Wait() {
				failed = errors.New("a message was not confirmed")
			}
		}
		settled <- failed
	}()
	for _, publishing := range publishings {
		confirmation, err := channel.PublishWithDeferredConfirmWithContext(ctx, b.name, "", false, false, publishing)
		if err != nil {
			close(outstanding)
			return 0, err
		}
		outstanding <- confirmation
	}
	close(outstanding)
	if err := <-settled; err != nil {
		return 0, err
	}
	return float64(messages) / time.Since(start).Seconds(), nil
}
