package rabbit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Destination names where messages go, without credentials: the broker's host
// and port, the virtual host, and which exchange and routing key the topic
// "{topic}" has. Two publishers with the same name publish to the same queues,
// unless a host name means different brokers in different places. A Dial
// function of your own may connect to another host: the name has that of the
// URI. A forwarder stores and logs the name, see forwarder.Config.Destination.
func (p *Publisher) Destination() string {
	return nameOf([]string{p.config.Connection.AmqpURI}, p.config.Exchange.GenerateName, p.config.Publish.GenerateRoutingKey)
}

// nameOf is the same for the nodes of a cluster in any order.
func nameOf(uris []string, exchange, key func(topic string) string) string {
	var nodes []string
	vhost := ""
	for _, text := range uris {
		uri, err := amqp.ParseURI(text)
		if err != nil {
			continue // NewPublisher refuses it
		}
		vhost = uri.Vhost
		for host := range strings.SplitSeq(uri.Host, ",") {
			nodes = append(nodes, strings.ToLower(host)+":"+strconv.Itoa(uri.Port))
		}
	}
	slices.Sort(nodes)
	return fmt.Sprintf("rabbitmq %s vhost %+q exchange %s key %s",
		strings.Join(slices.Compact(nodes), ","), vhost, rule(exchange), rule(key))
}

// rule is what a function makes of a topic, as an example.
func rule(of func(topic string) string) (example string) {
	defer func() {
		if recover() != nil {
			example = "unknown" // it may know certain topics only
		}
	}()
	return fmt.Sprintf("%+q", of("{topic}"))
}
