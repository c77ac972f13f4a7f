package rabbit

import (
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	errDrops   = errors.New("the queue has a delivery limit and no dead-letter exchange")
	errTooSoon = errors.New("the consumer timeout is not over LongestUnackedWait, for each message in flight and those at hand behind it")
)

// What a broker does that is not told otherwise.
const (
	defaultDeliveryLimit   = 20 // of quorum queues, from 4.0
	defaultConsumerTimeout = 30 * time.Minute
)

// warn says, when a subscription begins, where the broker would interfere with
// messages before retry and poison do. What policies and the broker's own
// configuration say cannot be seen through AMQP.
func (sub *subscription) warn(l *link) {
	config, logger := sub.s.config, sub.s.cfg.Logger
	queue := sub.arguments
	major, minor := brokerVersion(l.conn.Properties)
	if limit, limited := deliveryLimit(queue, major); limited {
		fields := sub.fields().Add(watermill.LogFields{"delivery_limit": limit, "nacks_count": nacksCount(major, minor)})
		if queue["x-dead-letter-exchange"] == nil {
			logger.Error("The broker drops messages that come back too often; "+
				"see Queue.Arguments, x-delivery-limit, or for a queue that exists: "+
				`rabbitmqctl set_policy no-limit '^QUEUE$' '{"delivery-limit":-1}' --apply-to queues`, errDrops, fields)
		} else {
			logger.Info("The broker dead-letters messages that come back too often", fields)
		}
	}
	stay := sub.s.cfg.longestStay(sub.s.cfg.prefetch(config.Consume.Qos.PrefetchCount))
	if timeout := consumerTimeout(config.Consume.Arguments, queue); timeout <= stay {
		logger.Error("The broker closes the channel under messages that are held too long", errTooSoon,
			sub.fields().Add(watermill.LogFields{"consumer_timeout": timeout, "longest_hold": sub.s.cfg.LongestUnackedWait, "longest_stay": stay}))
	}
}

// deliveryLimit is how often the queue delivers a message, as far as it was
// declared here.
func deliveryLimit(queue amqp.Table, major int) (limit int64, limited bool) {
	if queue[amqp.QueueTypeArg] != amqp.QueueTypeQuorum {
		return 0, false
	}
	limit, given := integer(queue["x-delivery-limit"])
	switch {
	case given:
		return limit, limit >= 0 // -1 is none
	case major >= 4:
		return defaultDeliveryLimit, true
	}
	return 0, false
}

// withoutLimit returns the arguments with which a queue that would have the
// broker's default limit is declared without one, and true if there is such a
// queue. Before 4.0 there is no default; a queue with a dead-letter exchange
// loses nothing by it.
func withoutLimit(queue, broker amqp.Table) (amqp.Table, bool) {
	major, _ := brokerVersion(broker)
	_, said := queue["x-delivery-limit"]
	_, limited := deliveryLimit(queue, major)
	if !limited || said || queue["x-dead-letter-exchange"] != nil {
		return nil, false
	}
	queue = maps.Clone(queue)
	queue["x-delivery-limit"] = int32(-1)
	return queue, true
}

func isPrecondition(err error) bool {
	refused, ok := errors.AsType[*amqp.Error](err)
	return ok && refused.Server && refused.Code == amqp.PreconditionFailed
}

// nacksCount says whether a nack is a delivery towards the limit.
func nacksCount(major, minor int) bool { return major < 4 || major == 4 && minor < 3 }

func consumerTimeout(tables ...amqp.Table) time.Duration {
	for _, args := range tables {
		if ms, given := integer(args["x-consumer-timeout"]); given {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return defaultConsumerTimeout
}

// brokerVersion is 0, 0 where the broker does not say.
func brokerVersion(properties amqp.Table) (major, minor int) {
	version, _ := properties["version"].(string)
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor
}
