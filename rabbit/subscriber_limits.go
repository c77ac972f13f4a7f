package rabbit

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	errDrops   = errors.New("the queue has a delivery limit and no dead-letter exchange")
	errTooSoon = errors.New("the consumer timeout must be longer than LongestUnackedWait, " +
		"for a message in flight and for the prefetched messages that wait for it")
)

// Defaults of RabbitMQ.
const (
	defaultDeliveryLimit   = 20 // of quorum queues, since RabbitMQ 4.0
	defaultConsumerTimeout = 30 * time.Minute
)

// logLimits logs the delivery limit of the queue, and logs the consumer timeout if it
// is too short. Because of such limits, the broker can remove messages before retry and
// poison have handled them. It is called when a subscription begins. It does not know
// limits that policies or the broker's configuration set, because AMQP does not show
// these limits.
func (sub *subscription) logLimits(c *connection) {
	config, logger := sub.s.config, sub.s.cfg.Logger
	queue := sub.arguments
	major, minor := brokerVersion(c.amqp.Properties)
	if limit, limited := deliveryLimit(queue, major); limited {
		fields := sub.fields().Add(watermill.LogFields{"delivery_limit": limit, "nacks_count": nacksCount(major, minor)})
		if queue["x-dead-letter-exchange"] == nil {
			logger.Error("Queue limit drops messages that are delivered too often; "+
				"set x-delivery-limit to -1 in Queue.Arguments, or for a queue that exists: "+
				`rabbitmqctl set_policy no-limit '^QUEUE$' '{"delivery-limit":-1}' --apply-to queues`, errDrops, fields)
		} else {
			logger.Info("Queue limit dead-letters messages that are delivered too often", fields)
		}
	}
	unacked := sub.cfg.longestUnacked(sub.cfg.prefetch(config.Consume.Qos.PrefetchCount))
	if timeout := consumerTimeout(config.Consume.Arguments, queue); timeout <= unacked {
		logger.Error("Consumer timeout of the broker is too short for LongestUnackedWait", errTooSoon,
			sub.fields().Add(watermill.LogFields{
				"consumer_timeout": timeout, "longest_unacked_wait": sub.s.cfg.LongestUnackedWait, "longest_unacked": unacked,
			}))
	}
}

// deliveryLimit returns the maximum number of times that the queue delivers a message.
// If the queue has no limit, the result limited is false. The result depends on the
// arguments of the queue, and on the major version of the broker.
func deliveryLimit(queue amqp.Table, major int) (limit int64, limited bool) {
	if queue[amqp.QueueTypeArg] != amqp.QueueTypeQuorum {
		return 0, false
	}
	limit, configured := integer(queue["x-delivery-limit"])
	switch {
	case configured:
		return limit, limit >= 0 // -1 means no limit
	case major >= 4:
		return defaultDeliveryLimit, true
	}
	return 0, false
}

// nacksCount reports whether a nack counts towards the delivery limit.
func nacksCount(major, minor int) bool { return major < 4 || major == 4 && minor < 3 }

// consumerTimeout returns the value of x-consumer-timeout in the first table that
// contains this argument. If no table contains it, consumerTimeout returns the default
// of the broker.
func consumerTimeout(tables ...amqp.Table) time.Duration {
	for _, args := range tables {
		if ms, configured := integer(args["x-consumer-timeout"]); configured {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return defaultConsumerTimeout
}

// brokerVersion returns the broker's version, or 0, 0 if the broker does not send it.
func brokerVersion(properties amqp.Table) (major, minor int) {
	version, _ := properties["version"].(string)
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor
}
