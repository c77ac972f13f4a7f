// Package amqpv3 connects Watermill to RabbitMQ with the amqp.Config of watermill-amqp v3. Its
// constructors return the Publisher and the Subscriber of package rabbit, which itself uses the
// amqp.Config of v2. The package is a separate module, so that other users of rabbit do not need
// v3:
//
//	config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
//	config.Marshaler = rabbit.Marshaler{}
//	publisher, err := amqpv3.NewPublisher(config, rabbit.PublisherConfig{})
//	subscriber, err := amqpv3.NewSubscriber(config, rabbit.SubscriberConfig{})
//
// Everything else of package rabbit works with both versions, in particular rabbit.Marshaler.
package amqpv3

import (
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// NewPublisher returns a Publisher for the config of watermill-amqp v3. It uses the same fields in
// the same way as rabbit.NewPublisher. If config.TopologyBuilder is nil, it uses the default of v3.
func NewPublisher(config amqp.Config, cfg rabbit.PublisherConfig) (*rabbit.Publisher, error) {
	return rabbit.NewPublisher(converted(config), cfg)
}

// NewSubscriber returns a Subscriber for the config of watermill-amqp v3. It uses the same fields
// in the same way as rabbit.NewSubscriber, except that QueueBind.GenerateRoutingKey receives the
// topic, and not the name of the queue. If config.TopologyBuilder is nil, it uses the default of
// v3.
//
// amqp.IsMessageRedelivered of v3 works with its messages.
func NewSubscriber(config amqp.Config, cfg rabbit.SubscriberConfig) (*rabbit.Subscriber, error) {
	if config.Marshaler == nil {
		config.Marshaler = rabbit.Marshaler{}
	}
	config.Marshaler = marshaler{config.Marshaler}
	return rabbit.NewSubscriber(converted(config), cfg)
}

// marshaler marks redelivered messages as the subscriber of v3 does.
type marshaler struct{ amqp.Marshaler }

func (m marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg, err := m.Marshaler.Unmarshal(delivery)
	switch {
	case err != nil || msg == nil:
	case delivery.Redelivered:
		if msg.Metadata == nil {
			msg.Metadata = make(message.Metadata)
		}
		msg.Metadata.Set(amqp.MetadataRedeliveredKey, "true")
	default:
		delete(msg.Metadata, amqp.MetadataRedeliveredKey) // the sender has copied it from another message
	}
	return msg, err
}
