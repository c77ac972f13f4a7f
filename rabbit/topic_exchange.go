package rabbit

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
)

// TopicExchange returns a configuration with one durable topic exchange for all topics.
// A published topic is the routing key, for example the type of an event:
// "orders.placed". A subscribed topic is a pattern: "*" stands for one word, and "#" for
// any number of words, as in "orders.*" and "#".
//
// Each pattern has a durable queue for each service, with the name pattern_service, in
// which all matching messages keep their order. Set Queue.Arguments to declare quorum
// queues. A publisher ignores service.
//
// A message with a routing key that no pattern matches is refused, as a topic without a
// queue is. See docs/topic-exchange.md.
func TopicExchange(uri, exchange, service string) amqp.Config {
	queue := amqp.GenerateQueueNameTopicNameWithSuffix(service)
	config := amqp.NewDurablePubSubConfig(uri, queue)
	config.Marshaler = Marshaler{}
	config.Exchange.Type = "topic"
	config.Exchange.GenerateName = func(string) string { return exchange }
	config.Publish.GenerateRoutingKey = func(topic string) string { return topic }
	suffix := queue("")
	// watermill-amqp passes the name of the queue in place of the topic.
	config.QueueBind.GenerateRoutingKey = func(queue string) string { return strings.TrimSuffix(queue, suffix) }
	return config
}
