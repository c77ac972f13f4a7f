package rabbit

import (
	"errors"
	"fmt"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"
)

// topologyError reports that the topology could not be declared.
type topologyError struct{ error }

func (e *topologyError) Unwrap() error { return e.error }

// declare declares the topology. It uses channel. If the broker may refuse a
// declaration, it uses a separate channel for it.
func (sub *subscription) declare(c *connection, channel *amqp.Channel) error {
	sub.arguments = sub.s.config.Queue.Arguments
	if unlimited, ok := withoutDeliveryLimit(sub.arguments, c.amqp.Properties); ok {
		// Use a separate channel, because the broker closes the channel when it
		// refuses.
		err := onChannel(c.amqp, func(channel *amqp.Channel) error { return sub.build(channel, unlimited) })
		switch {
		case err == nil:
			sub.arguments = unlimited
			return nil
		case !isPreconditionFailed(err):
			return sub.refused(err)
		}
		// The queue exists with other arguments, so declare it with the configured
		// ones.
	}
	if err := sub.build(channel, sub.arguments); err != nil {
		return sub.refused(err)
	}
	return nil
}

// build declares the topology, with the given arguments of the queue.
func (sub *subscription) build(channel *amqp.Channel, arguments amqp.Table) error {
	config := sub.s.config
	config.Queue.Arguments = arguments
	return config.TopologyBuilder.BuildTopology(channel, sub.queue, sub.exchange, config, sub.s.cfg.Logger)
}

func (sub *subscription) refused(err error) error {
	return &topologyError{fmt.Errorf("rabbit: declare topology of topic %q: %w", sub.topic, redact(err))}
}

// withoutDeliveryLimit returns arguments that declare a queue without the broker's
// default delivery limit. It returns false if the queue need not be declared
// differently: before RabbitMQ 4.0 there is no default limit, a configured limit stays,
// and a queue with a dead-letter exchange loses no messages.
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

// onChannel calls f with a separate channel. It returns f's error, or the reason for
// which the broker closed the channel. With NoWait this reason may arrive before Close
// is called, and then Close returns nil.
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
