package rabbit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Destination returns a name for the place to which messages are published. The name
// contains the broker's host and port, the virtual host, the exchange and the routing
// key. In the exchange and the routing key, "{topic}" stands for the topic. The name
// contains no credentials.
//
// Two publishers with the same name publish to the same queues, unless the same host
// name refers to different brokers in different places. The name contains the host in
// the URI, even if a Dial function connects to another host. A forwarder stores and
// logs the name, see forwarder.Config.Destination.
func (p *Publisher) Destination() string {
	return destinationName([]string{p.config.Connection.AmqpURI}, p.config.Exchange.GenerateName, p.config.Publish.GenerateRoutingKey)
}

// destinationName returns the name that Destination returns. The order in which the
// nodes of a cluster are listed does not change the name.
func destinationName(uris []string, exchange, key func(topic string) string) string {
	var nodes []string
	vhost := ""
	for _, text := range uris {
		uri, err := amqp.ParseURI(text)
		if err != nil {
			continue // NewPublisher has refused an invalid URI
		}
		vhost = uri.Vhost
		for host := range strings.SplitSeq(uri.Host, ",") {
			nodes = append(nodes, strings.ToLower(host)+":"+strconv.Itoa(uri.Port))
		}
	}
	slices.Sort(nodes)
	return fmt.Sprintf("rabbitmq %s vhost %+q exchange %s key %s",
		strings.Join(slices.Compact(nodes), ","), vhost, example(exchange), example(key))
}

// example returns the result of generate for the topic "{topic}", in quotes.
func example(generate func(topic string) string) (name string) {
	defer func() {
		if recover() != nil {
			name = "unknown" // generate may accept only certain topics
		}
	}()
	return fmt.Sprintf("%+q", generate("{topic}"))
}
