package rabbit

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/usercode"
)

// declaration describes an exchange that is being declared. The field err is set before
// the channel done is closed.
type declaration struct {
	done chan struct{}
	err  error
}

func (s *session) isDeclared(exchange string) bool {
	if exchange == "" {
		return true // the default exchange always exists
	}
	_, ok := s.declared[exchange]
	return ok
}

// declare declares the exchange. If another call is already declaring the same
// exchange, declare waits for that call, and returns its error. If no channel is free,
// because other exchanges are being declared, declare waits until one of these
// declarations has ended. It then returns nil without declaring the exchange, and the
// caller tries again. declare returns an error if the broker refuses the declaration.
// If the connection is lost instead, declare returns nil. The Publisher then has no
// confirm channel, so the caller waits for a new connection. The caller must have
// locked Publisher.mu; declare unlocks it while it waits.
func (s *session) declare(exchange string) error {
	if d := s.declaring[exchange]; d != nil {
		s.p.await(d)
		return d.err
	}
	if len(s.declaring) == int(s.amqp.Config.ChannelMax) {
		for _, d := range s.declaring {
			s.p.await(d)
			return nil
		}
	}

	d := &declaration{done: make(chan struct{})}
	s.declaring[exchange] = d
	alone := s.p.alone[exchange]
	s.p.mu.Unlock()
	err := s.declareOn(exchange, alone)
	s.p.mu.Lock()

	delete(s.declaring, exchange)
	defer close(d.done)
	s.p.recordDeclaration(exchange, err)
	switch {
	case err == nil:
		s.declared[exchange] = struct{}{}
	case refusesDeclaration(err):
		d.err = err
	case errors.Is(err, amqp091.ErrChannelMax): // wait, because a closed channel will be free soon
	default:
		s.wire.Abort(err)
		if s.p.session == s {
			s.p.current = nil
			s.p.updateReadiness()
		}
	}
	return d.err
}

// await waits for a declaration. The caller must have locked p.mu; await unlocks it
// while it waits.
func (p *Publisher) await(d *declaration) {
	p.mu.Unlock()
	defer p.mu.Lock()
	<-d.done
}

// connectError is the error of an exchange that needs a connection of its own, and gets
// none. It does not unwrap to the broker's reason, which says nothing about the exchange.
// The connection of the Publisher is not affected.
type connectError struct{ reason error }

func (e *connectError) Error() string { return "connect: " + e.reason.Error() }

// declareOn declares the exchange on the connection of s. If alone is true, or if the
// broker closes that connection, declareOn uses a connection of its own. An error of this
// connection concerns only this exchange, and the messages of others are not affected.
func (s *session) declareOn(exchange string, alone bool) error {
	if !alone {
		if err := s.p.declareOnOwnChannel(s.connection, exchange); !closesConnection(err) {
			return err
		}
	}
	c, err := connect(s.p.ctx, s.p.config.Connection, dialSettings{dialTimeout: s.p.cfg.DialTimeout, writeTimeout: s.p.cfg.WriteTimeout})
	switch {
	case err != nil && alone:
		return &connectError{err}
	case err != nil:
		return fmt.Errorf("connect: %w", errors.Join(amqp091.ErrClosed, err))
	}
	defer c.end(true)
	return s.p.declareOnOwnChannel(c, exchange)
}

// declareOnOwnChannel declares the exchange on a separate channel, because the broker
// closes the channel if it refuses the declaration. If the user may not declare the
// exchange, it is enough that the exchange exists.
func (p *Publisher) declareOnOwnChannel(c *connection, exchange string) error {
	return c.request(p.ctx, func() error {
		err := withExistingDurability(p.config, func(config amqp.Config) error {
			return onChannel(c.amqp, func(channel *amqp091.Channel) error { return buildExchange(channel, exchange, config) })
		})
		if !refusesAccess(err) {
			return err
		}
		// The user needs no right to see whether the exchange exists. The broker does not
		// compare the other arguments of a passive declaration.
		missing := onChannel(c.amqp, func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeTopic, true, false, false, false, nil)
		})
		if missing == nil || !refusesDeclaration(missing) {
			return missing
		}
		return err
	})
}

// refusesAccess reports whether the broker has closed a channel because the user lacks a
// right.
func refusesAccess(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Server && refused.Code == amqp091.AccessRefused
}

// recordDeclaration records whether the next declaration of exchange needs a connection of
// its own. The caller must have locked p.mu.
func (p *Publisher) recordDeclaration(exchange string, err error) {
	switch {
	case err == nil:
		delete(p.alone, exchange)
	case closesConnection(err):
		if p.alone == nil {
			p.alone = make(map[string]bool)
		}
		p.alone[exchange] = true
	}
}

// buildExchange declares the exchange, and returns a panic of the TopologyBuilder as an
// error. The TopologyBuilder runs while p.mu is unlocked. If a panic reached send, the
// deferred Unlock in send would unlock p.mu a second time, and Go would end the
// process.
func buildExchange(channel *amqp091.Channel, exchange string, config amqp.Config) (err error) {
	err = usercode.Guarded(func() error { return config.TopologyBuilder.ExchangeDeclare(channel, exchange, config) })
	if usercode.Stack(err) != "" {
		return fmt.Errorf("the TopologyBuilder panicked: %w", err)
	}
	return err
}

// refusesDeclaration reports whether err means that the exchange cannot be declared. If
// it returns false, the connection was lost for another reason. Some declarations, for
// example of an unknown exchange type, are refused by closing the whole connection, see
// closesConnection.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp091.Error](err)
	if !ok {
		return true // this error was returned by the TopologyBuilder
	}
	return closed.Server && closed.Code != amqp091.ConnectionForced
}

// forbiddenFor is how long Ping reports that a destination is forbidden. A forwarder tries
// a forbidden topic more often, so this time matters only if nobody tries it any more.
const forbiddenFor = 5 * time.Minute

// errNewLogin is the reason why the Publisher closes a connection that lacks a right.
var errNewLogin = errors.New("the broker refuses access, logging in again")

// forbidden says since when the broker has refused a destination, and why.
type forbidden struct {
	err  *PublishError
	last time.Time
}

// forbid records that the broker refuses a destination. If no other message is
// unconfirmed, it also closes the connection: the next connection gets the present
// credentials, see amqp091.Config.SASL, for example a new token. A young connection is
// kept, so that a missing right does not delay messages for other destinations. The caller
// must have locked p.mu.
func (p *Publisher) forbid(s *session, err *PublishError, alone bool) {
	if p.forbidden == nil || len(p.forbidden) == maxStreaks {
		p.forbidden = make(map[destination]forbidden)
	}
	p.forbidden[destination{err.Exchange, err.RoutingKey}] = forbidden{err, time.Now()}
	if alone && time.Since(s.began) >= p.cfg.reconnectMax {
		s.wire.Abort(errNewLogin)
	}
}

func (p *Publisher) allow(to destination) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.forbidden, to)
}

// forbiddenNow returns the error of a destination that the broker refuses, or nil. The
// caller must have locked p.mu.
func (p *Publisher) forbiddenNow() error {
	var latest forbidden
	for _, f := range p.forbidden {
		if f.last.After(latest.last) {
			latest = f
		}
	}
	if time.Since(latest.last) > forbiddenFor {
		return nil
	}
	return latest.err
}

// withExistingDurability calls declare with config. If the exchange exists and differs
// only in its durability, it calls declare again with the durability of the existing
// exchange. For example, [TopicExchange] is durable, and watermill-amqp v3's
// NewDurableTopicConfig is not. A lost exchange does not lose messages: the broker
// refuses them until the Subscriber has declared the exchange again.
func withExistingDurability(config amqp.Config, declare func(config amqp.Config) error) error {
	err := declare(config)
	if isPreconditionFailed(err) && strings.Contains(err.Error(), "inequivalent arg 'durable' for exchange") {
		config.Exchange.Durable = !config.Exchange.Durable
		return declare(config)
	}
	return err
}

// inequivalent finds the name of the value that differs.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for (queue|exchange) `)

// existingRemedy returns advice on a declaration that the broker has refused, because the
// queue or the exchange exists with another value. The advice names the field of the
// configuration. For other reasons, existingRemedy returns "".
func existingRemedy(reason string) string {
	found := inequivalent.FindStringSubmatch(reason)
	if found == nil {
		return ""
	}
	argument, kind := found[1], found[2]
	section := strings.ToUpper(kind[:1]) + kind[1:]
	field := cmp.Or(configFields[section+" "+argument], fmt.Sprintf("%s.Arguments[%q]", section, argument))
	return fmt.Sprintf("the %s exists: set %s of this configuration to its current value, or delete the %s", kind, field, kind)
}

// configFields are the fields of watermill-amqp's Config by the broker's names.
var configFields = map[string]string{
	"Queue durable":        "Queue.Durable",
	"Queue auto_delete":    "Queue.AutoDelete",
	"Queue exclusive":      "Queue.Exclusive",
	"Exchange durable":     "Exchange.Durable",
	"Exchange auto_delete": "Exchange.AutoDeleted",
	"Exchange internal":    "Exchange.Internal",
	"Exchange type":        "Exchange.Type",
}
