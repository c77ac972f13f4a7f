package rabbit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
)

func TestDestination(t *testing.T) {
	queues := amqp.NewDurableQueueConfig("")
	exchanges := amqp.NewDurablePubSubConfig("", nil)
	for name, c := range map[string]struct {
		uri    string
		config amqp.Config
		want   string
	}{
		"queues": {
			"amqp://ann:secret@rabbit:5673/orders", queues,
			`rabbitmq rabbit:5673 vhost "orders" exchange "" key "{topic}"`,
		},
		"exchanges": {
			"amqp://ann:secret@rabbit/", exchanges,
			`rabbitmq rabbit:5672 vhost "/" exchange "{topic}" key ""`,
		},
		"TLS, and a name in capitals": {
			"amqps://Rabbit.Example.COM/a%2Fb", queues,
			`rabbitmq rabbit.example.com:5671 vhost "a/b" exchange "" key "{topic}"`,
		},
		"a function that accepts certain topics only": {
			"amqp://rabbit", func() amqp.Config {
				config := amqp.NewDurableQueueConfig("")
				config.Exchange.GenerateName = func(topic string) string { panic("no such topic") }
				config.Publish.GenerateRoutingKey = func(topic string) string { return "v1.ü." + topic }
				return config
			}(),
			`rabbitmq rabbit:5672 vhost "/" exchange unknown key "v1.\u00fc.{topic}"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Connection.AmqpURI = c.uri
			p, err := NewPublisher(c.config, PublisherConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			got := p.Destination()
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if strings.Contains(got, "secret") || strings.Contains(got, "ann") {
				t.Errorf("%s contains credentials", got)
			}
		})
	}
}

// The nodes of a cluster can be listed in any order, and more than once.
func TestDestinationOfACluster(t *testing.T) {
	same := func(topic string) string { return topic }
	nodes := func(nodes ...string) string {
		var uris []string
		for i, node := range nodes {
			uris = append(uris, fmt.Sprintf("amqp://user%d:secret@%s/v", i, node))
		}
		return destinationName(uris, same, same)
	}
	want := `rabbitmq a:5672,b:5672,c:5673 vhost "v" exchange "{topic}" key "{topic}"`
	for _, got := range []string{nodes("a", "b", "c:5673"), nodes("c:5673", "B", "a", "b"), nodes("b,a", "c:5673")} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
