package rabbit

import (
	"errors"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
)

// topologyError means that the topology could not be declared.
type topologyError struct{ error }

func (e *topologyError) Unwrap() error { return e.error }

// declare declares the topology on channel. If the broker's default delivery limit
// would apply to the queue, declare first tries to declare the queue without a limit.
// It does this on a separate channel.
func (sub *subscription) declare(c *connection, channel *amqp.Channel) error {
	sub.arguments = sub.s.config.Queue.Arguments
	if unlimited, ok := withoutDeliveryLimit(sub.arguments, c.amqp.Properties); ok {
		// Use a separate channel, because the broker closes a channel when it refuses a
		// declaration.
		err := onChannel(c.amqp, func(channel *amqp.Channel) error { return sub.build(channel, unlimited) })
		switch {
		case err == nil:
			sub.arguments = unlimited
			return nil
		case !isPreconditionFailed(err):
			return sub.refused(err)
		}
		// The queue exists with other arguments, so declare it with the configured
		// arguments.
	}
	if err := sub.build(channel, sub.arguments); err != nil {
		return sub.refused(err)
	}
	return nil
}

// build declares the topology with the given arguments of the queue.
func (sub *subscription) build(channel *amqp.Channel, arguments amqp.Table) error {
	config := sub.s.config
	config.Queue.Arguments = arguments
	return config.TopologyBuilder.BuildTopology(channel, sub.queue, sub.exchange, config, sub.s.cfg.Logger)
}

func (sub *subscription) refused(err error) error {
	return &topologyError{fmt.Errorf("rabbit: declare topology of topic %q: %w", sub.topic, redact(err))}
}

// withoutDeliveryLimit returns arguments that declare a queue without the broker's
// default delivery limit. It returns false in three cases: the default limit does not
// apply, because the queue is not a quorum queue or the broker is older than RabbitMQ
// 4.0; a limit is configured; or the queue has a dead-letter exchange and so loses no
// messages.
func withoutDeliveryLimit(arguments, broker amqp.Table) (amqp.Table, bool) {
	major, _ := brokerVersion(broker)
	_, configured := arguments["x-delivery-limit"]
	_, limited := deliveryLimit(arguments, major)
	if !limited || configured || arguments["x-dead-letter-exchange"] != nil {
		return nil, false
	}
	arguments = maps.Clone(arguments)
	arguments["x-delivery-limit"] = int32(-1)
	return arguments, true
}

func isPreconditionFailed(err error) bool {
	refused, ok := errors.AsType[*amqp.Error](err)
	return ok && refused.Server && refused.Code == amqp.PreconditionFailed
}

// onChannel calls f with a separate channel. It returns the error of f, or the reason
// for which the broker closed the channel. It receives this reason from NotifyClose,
// because the error of Close is not enough: if f declares with NoWait, the broker may
// close the channel before onChannel calls Close, and Close then returns nil.
func onChannel(conn *amqp.Connection, f func(channel *amqp.Channel) error) error {
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	refused := channel.NotifyClose(make(chan *amqp.Error, 1))
	err = f(channel)
	if closed := channel.Close(); err == nil {
		err = closed
	}
	if reason, ok := <-refused; ok && err == nil {
		return reason
	}
	return err
}
