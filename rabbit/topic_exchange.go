package rabbit

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
)

// TopicExchange returns a configuration with one durable topic exchange for all topics.
// The topic of a published message is its routing key, for example the type of an
// event: "orders.placed". The topic of a subscription is a pattern: "*" stands for one
// word, and "#" for any number of words, as in "orders.*" and "#".
//
// For each pattern, each service has a durable queue. Its name is the pattern, "_" and
// the service, as in "orders.*_billing". All matching messages keep their order in this
// queue. To declare quorum queues, set Queue.Arguments. A publisher ignores the
// parameter service.
//
// A message whose routing key matches no pattern is refused, like a message to a topic
// without a queue. See docs/topic-exchange.md.
func TopicExchange(uri, exchange, service string) amqp.Config {
	queue := amqp.GenerateQueueNameTopicNameWithSuffix(service)
	config := amqp.NewDurablePubSubConfig(uri, queue)
	config.Marshaler = Marshaler{}
	config.Exchange.Type = "topic"
	config.Exchange.GenerateName = func(string) string { return exchange }
	config.Publish.GenerateRoutingKey = func(topic string) string { return topic }
	suffix := queue("")
	// watermill-amqp passes the name of the queue here, not the topic.
	config.QueueBind.GenerateRoutingKey = func(queue string) string { return strings.TrimSuffix(queue, suffix) }
	return config
}
