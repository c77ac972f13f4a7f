package rabbit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/usercode"
)

type topologyError struct{ error }

func (e *topologyError) Unwrap() error { return e.error }

var errStream = errors.New("the queue is a stream, which does not deliver a message again after a nack or a lost connection; " +
	"consume a queue of type quorum or classic")

// declare declares the topology, first without a delivery limit if the broker's default would
// apply. It uses separate channels, because the broker closes one when it refuses a declaration. A
// stream is refused. If the user may not declare the queue, it is enough that it exists.
func (sub *subscription) declare(c *connection) error {
	sub.arguments = sub.s.config.Queue.Arguments
	quorum := false // whether the queue is known to be a quorum queue
	if unlimited, ok := sub.withoutDeliveryLimit(c.amqp.Properties); ok {
		err := sub.build(c, unlimited)
		switch {
		case err == nil:
			sub.arguments = unlimited
			return sub.refuseStream(c)
		case lacksRight(err) && sub.isReadyMade(c):
			return nil
		case !isPreconditionFailed(err):
			return sub.refused(err)
		case namesStream(err):
			return sub.refused(errStream)
		}
		// The queue exists with other arguments, or is no quorum queue.
		quorum = strings.Contains(err.Error(), "inequivalent arg 'x-delivery-limit'")
	}
	switch err := sub.build(c, sub.arguments); {
	case err == nil:
	case lacksRight(err) && sub.isReadyMade(c):
		return nil
	default:
		return sub.refused(err)
	}
	if quorum {
		sub.arguments = with(sub.arguments, amqp091.QueueTypeArg, amqp091.QueueTypeQuorum)
	}
	return sub.refuseStream(c)
}

// refuseStream declares the queue again with an argument that only streams have, and other queues
// ignore, if it can be a stream by the default type of the virtual host, or by the TopologyBuilder.
func (sub *subscription) refuseStream(c *connection) error {
	if !sub.hasDefaultType() || sub.consumedBefore {
		return nil
	}
	err := onChannel(c.amqp, func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(sub.queue, true, false, false, false, with(sub.arguments, "x-max-age", "973Y"))
		return err
	})
	switch {
	case namesStream(err):
		return sub.refused(errStream)
	case closesConnection(err):
		return err
	}
	return nil // any other refusal says that the queue has other arguments
}

func (sub *subscription) hasDefaultType() bool {
	queue := sub.s.config.Queue
	return sub.arguments[amqp091.QueueTypeArg] == nil && queue.Durable && !queue.AutoDelete && !queue.Exclusive
}

func namesStream(err error) bool {
	if !isPreconditionFailed(err) {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "rabbit_stream_queue") || strings.Contains(text, "inequivalent arg 'x-max-age'") ||
		strings.Contains(text, "current is 'stream'") || strings.Contains(text, "current is the value 'stream'")
}

func with(arguments amqp091.Table, name string, value any) amqp091.Table {
	more := make(amqp091.Table, len(arguments)+1)
	maps.Copy(more, arguments)
	more[name] = value
	return more
}

// topicTopologyBuilder also needs the topic, such as one of watermill-amqp v3, see package amqpv3.
// It is called in place of BuildTopology.
type topicTopologyBuilder interface {
	BuildTopologyOfTopic(
		channel *amqp091.Channel, topic, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter) error
}

func (sub *subscription) build(c *connection, arguments amqp091.Table) error {
	config := sub.s.config
	config.Queue.Arguments = arguments
	return withExistingDurability(config, func(config amqp.Config) error {
		return onChannel(c.amqp, func(channel *amqp091.Channel) error {
			err := usercode.Guarded(func() error {
				if builder, ok := config.TopologyBuilder.(topicTopologyBuilder); ok {
					return builder.BuildTopologyOfTopic(channel, sub.topic, sub.queue, sub.exchange, config, sub.s.cfg.Logger)
				}
				return config.TopologyBuilder.BuildTopology(channel, sub.queue, sub.exchange, config, sub.s.cfg.Logger)
			})
			if usercode.Stack(err) != "" {
				err = fmt.Errorf("the TopologyBuilder: %w", err)
			}
			return err
		})
	})
}

func (sub *subscription) refused(err error) error {
	err = redact(err)
	if remedy := existingRemedy(err.Error()); remedy != "" && isPreconditionFailed(err) {
		err = fmt.Errorf("%w; %s", err, remedy)
	}
	return &topologyError{fmt.Errorf("rabbit: declare topology of topic %q: %w", sub.topic, err)}
}

// withoutDeliveryLimit returns arguments without the broker's default delivery limit. It returns
// false if that does not apply, because the queue cannot be a quorum queue or the broker is older
// than RabbitMQ 4.0, if a limit is configured, or if a dead-letter exchange keeps the messages.
func (sub *subscription) withoutDeliveryLimit(broker amqp091.Table) (amqp091.Table, bool) {
	arguments := sub.arguments
	if sub.hasDefaultType() {
		arguments = with(arguments, amqp091.QueueTypeArg, amqp091.QueueTypeQuorum) // a virtual host can have this default
	}
	major, _ := brokerVersion(broker)
	_, configured := arguments["x-delivery-limit"]
	_, limited := deliveryLimit(arguments, major)
	if !limited || configured || arguments["x-dead-letter-exchange"] != nil {
		return nil, false
	}
	return with(sub.arguments, "x-delivery-limit", int32(-1)), true
}

func isPreconditionFailed(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Server && refused.Code == amqp091.PreconditionFailed
}

// onChannel returns the error of f, or the reason for which the broker closed the channel. It takes
// the reason from NotifyClose: if f declares with NoWait, the broker may close the channel before
// Close, which then returns nil. If the broker has closed the connection, its error replaces that
// of f.
func onChannel(conn *amqp091.Connection, f func(channel *amqp091.Channel) error) error {
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	refused := channel.NotifyClose(make(chan *amqp091.Error, 1))
	err = f(channel)
	if closed := channel.Close(); err == nil {
		err = closed
	}
	if reason, ok := <-refused; ok && (err == nil || closesConnection(reason)) {
		return reason
	}
	return err
}

// closedError means that the broker has closed the connection during a setup. All its users get the
// same error, so it says something about a topic only if no other topic uses the connection.
type closedError struct{ error }

func (e *closedError) Unwrap() error { return e.error }

func closedBy(err error) bool {
	_, ok := errors.AsType[*closedError](err)
	return ok
}

func closesConnection(err error) bool {
	closed, ok := errors.AsType[*amqp091.Error](err)
	return ok && closed.Server && !closed.Recover && closed.Code != amqp091.ConnectionForced
}

// connectionFor returns the connection for a consumer of topic, usually the shared one. After the
// broker has closed a connection during the setup, or refused access, it is one without other
// users, until a setup succeeds.
func (s *Subscriber) connectionFor(ctx context.Context, topic string, shared *connection) (*connection, func(), error) {
	if !s.isAlone(topic) {
		return shared, func() {}, nil
	}
	c, err := connect(ctx, s.config.Connection, s.dialSettings())
	if err != nil {
		return nil, nil, err
	}
	c.alone = true
	stop := context.AfterFunc(s.ctx, func() { c.wire.Abort(net.ErrClosed) })
	return c, func() {
		stop()
		c.end(true)
	}, nil
}

// If the broker has closed the shared connection, setUp calls f again with one of its own.
func (s *Subscriber) setUp(topic string, f func() error) error {
	alone := s.isAlone(topic)
	err := f()
	if closedBy(err) && !alone {
		err = f()
	}
	return err
}

// recordSetUp records whether the next consumer of topic needs a connection without other users.
func (s *Subscriber) recordSetUp(topic string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.alone, topic)
	case lacksRight(err):
		s.alone[topic] = true // the new connection gets the present credentials
		return forbiddenSetUp(topic, err)
	case closesConnection(err):
		s.alone[topic] = true
		return &closedError{fmt.Errorf("rabbit: set up the consumer of topic %q: the broker has closed the connection: %w", topic, redact(err))}
	}
	return err
}

func (s *Subscriber) isAlone(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alone[topic]
}

// The broker also refuses a second consumer of a queue with an exclusive one, with the same code.
func lacksRight(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Server && refused.Code == amqp091.AccessRefused && !strings.Contains(refused.Reason, "in exclusive use")
}

func forbiddenSetUp(topic string, err error) error {
	return fmt.Errorf("%w: set up the consumer of topic %q: %w; grant the user the missing right with rabbitmqctl set_permissions, "+
		"or renew its token", ErrForbidden, topic, redact(err))
}

// isReadyMade reports whether the queue exists, with the bindings of whoever has declared it, and
// the user may not declare it. A user who may lacks a right for the exchange or the bindings.
func (sub *subscription) isReadyMade(c *connection) bool {
	queue := sub.s.config.Queue
	declare := func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(sub.queue, queue.Durable, queue.AutoDelete, queue.Exclusive, false, sub.arguments)
		return err
	}
	find := func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclarePassive(sub.queue, queue.Durable, queue.AutoDelete, queue.Exclusive, false, nil)
		return err
	}
	return refusesAccess(onChannel(c.amqp, declare)) && onChannel(c.amqp, find) == nil
}

// recordRefusal reports whether a missing right is new.
func (sub *subscription) recordRefusal(err error) bool {
	s := sub.s
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.forbidden[sub]
	switch {
	case err == nil:
		delete(s.forbidden, sub)
	case errors.Is(err, ErrForbidden):
		s.forbidden[sub] = err
		return !known
	}
	return false
}

// s.mu must be locked.
func (s *Subscriber) forbiddenNow() error {
	for _, err := range s.forbidden {
		return err
	}
	return nil
}
