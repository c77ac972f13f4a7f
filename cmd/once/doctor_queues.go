package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// longestUnacked is a little more than the longest time for which a consumer of this
// library leaves a message unacked by default. This time is poison.Config.UnackedWait,
// 10 minutes.
const longestUnacked = 15 * time.Minute

// defaultDeliveryLimit is the default delivery limit of quorum queues since RabbitMQ 4.
const defaultDeliveryLimit = 20

// brokerQueue contains some fields of the response to GET /api/queues/VHOST/NAME.
type brokerQueue struct {
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    map[string]any `json:"effective_policy_definition"`
	Consumers int            `json:"consumers"`
	Messages  int            `json:"messages"`
}

// setting returns a setting of the queue. It searches the arguments of the queue first,
// and then its policy.
func (q brokerQueue) setting(name string) (value any, set bool) {
	if value, set = q.Arguments["x-"+name]; !set {
		value, set = q.Policy[name]
	}
	return value, set
}

func (q brokerQueue) number(name string) (n float64, set bool) {
	value, _ := q.setting(name)
	n, set = value.(float64)
	return n, set
}

// queuesOf returns the queues that receive the messages of a topic.
func (d *doctor) queuesOf(ctx context.Context, m *management, topic string) (queues []string, err error) {
	name := d.broker.namePrefix + topic
	if d.broker.topology == topologyQueue {
		return []string{name}, m.get(ctx, new(brokerQueue), "queues", m.vhost, name)
	}
	var bindings []struct {
		Destination string `json:"destination"`
		Type        string `json:"destination_type"`
	}
	err = m.get(ctx, &bindings, "exchanges", m.vhost, name, "bindings", "source")
	for _, b := range bindings {
		if b.Type == "queue" {
			queues = append(queues, b.Destination)
		}
	}
	return queues, err
}

func (q brokerQueue) findings(name, version string) (found []finding) {
	_, deadLetters := q.setting("dead-letter-exchange")
	limit, limited := q.number("delivery-limit")
	major, _, _ := strings.Cut(version, ".")
	if release, err := strconv.Atoi(major); !limited && err == nil && release >= 4 {
		limit, limited = defaultDeliveryLimit, true
	}
	if q.Type == "quorum" && limited && limit >= 0 && !deadLetters {
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has a delivery limit of %.0f and no dead-letter exchange.", name, limit),
			Why:  "The broker drops a message that comes back more often: a consumer that dies again and again loses it.",
			Do: fmt.Sprintf(`rabbitmqctl set_policy no-limit '^%s$' '{"delivery-limit":-1}' --apply-to queues, `+
				`or declare a dead-letter exchange.`, name),
		})
	}
	if ms, set := q.number("consumer-timeout"); set && time.Duration(ms)*time.Millisecond < longestUnacked {
		timeout := time.Duration(ms) * time.Millisecond
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has a consumer timeout of %s.", name, age(timeout)),
			Why: "The broker closes the channel of a consumer that leaves a message unacked for longer, as this library does while the " +
				"database is away: all unacked messages are then delivered again.",
			Do: fmt.Sprintf("Raise consumer-timeout above %s, or lower UnackedWait in the consumer.", age(longestUnacked)),
		})
	}
	if q.Consumers == 0 {
		found = append(found, finding{
			What: fmt.Sprintf("Queue %q has no consumer, and %s.", name, counted(q.Messages, "message", "messages")),
			Why:  "Nobody handles its messages. The queue grows until an alarm stops the broker.",
			Do:   "Start its consumer. If nobody needs the queue any more, delete it.",
		})
	}
	return found
}
