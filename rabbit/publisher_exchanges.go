package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/usercode"
)

type declaration struct {
	began time.Time
	done  chan struct{}
	err   error // set before done is closed
}

func (s *session) isDeclared(exchange string) bool {
	if exchange == "" {
		return true // the default exchange always exists
	}
	_, ok := s.declared[exchange]
	return ok
}

// declare waits until the exchange is declared, for up to DialTimeout after the beginning of the
// declaration, which then goes on: a broker that does not answer it can serve other exchanges. If no
// channel is free, declare waits for another declaration, and returns nil; so it does if the
// connection is lost. The caller then tries again. An error concerns only this exchange.
// Publisher.mu must be locked, and is unlocked meanwhile.
func (s *session) declare(exchange string) error {
	d := s.declaring[exchange]
	if d == nil && len(s.declaring) == int(s.amqp.Config.ChannelMax) {
		for _, other := range s.declaring {
			_, late := s.await(other)
			return late
		}
	}
	if d == nil {
		d = &declaration{began: time.Now(), done: make(chan struct{})}
		s.declaring[exchange] = d
		s.p.declarations++
		go s.runDeclaration(d, exchange, s.p.alone[exchange])
	}
	refused, late := s.await(d)
	if late != nil {
		s.leaveFor(exchange, late)
	}
	return cmp.Or(late, refused)
}

// leaveFor changes to another node, if there is one, because this one may be cut off from the others.
// It does so once until the exchange is declared: perhaps no node answers. p.mu must be locked.
func (s *session) leaveFor(exchange string, late error) {
	if !s.others || s.p.late[exchange] {
		return
	}
	if s.p.late == nil {
		s.p.late = make(map[string]bool)
	}
	s.p.late[exchange] = true
	s.wire.Abort(late)
}

// await returns the error of d, or another error if DialTimeout has ended first. p.mu must be locked,
// and is unlocked meanwhile.
func (s *session) await(d *declaration) (refused, late error) {
	limit := time.NewTimer(time.Until(d.began.Add(s.timeout)))
	defer limit.Stop()
	s.p.mu.Unlock()
	defer s.p.mu.Lock()
	select {
	case <-d.done:
		return d.err, nil
	case <-limit.C:
		return nil, &undeclaredError{fmt.Errorf("no reply within %v", s.timeout)}
	}
}

func (s *session) runDeclaration(d *declaration, exchange string, alone bool) {
	err := s.declareOn(exchange, alone)
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(s.declaring, exchange)
	p.declarations--
	p.broadcast()
	defer close(d.done)
	p.recordDeclaration(exchange, err)
	switch {
	case err == nil:
		s.declared[exchange] = struct{}{}
		delete(p.late, exchange)
	case s.refuses(err):
		d.err = err
	case errors.Is(err, amqp091.ErrChannelMax): // wait, because a closed channel will be free soon
	default:
		s.wire.Abort(err)
		if p.session == s {
			p.current = nil
			p.updateReadiness()
		}
	}
}

// undeclaredError means that the broker has not answered the declaration of an exchange. It does not
// unwrap to a reason of the broker, which says nothing about the exchange.
type undeclaredError struct{ reason error }

func (e *undeclaredError) Error() string { return e.reason.Error() }

// If alone is true, or if the broker closes the connection of s, declareOn uses a connection of its
// own, so that errors concern only this exchange.
func (s *session) declareOn(exchange string, alone bool) error {
	if !alone {
		if err := s.p.declareOnOwnChannel(s.connection, exchange); !closesConnection(err) {
			return err
		}
	}
	err := s.declareOnOwnConnection(exchange)
	if _, unanswered := errors.AsType[*undeclaredError](err); unanswered && !alone {
		return errors.Join(amqp091.ErrClosed, err) // the connection of s is lost, too
	}
	return err
}

func (s *session) declareOnOwnConnection(exchange string) error {
	c, err := connect(s.p.ctx, s.p.config.Connection, s.p.dialSettings(false))
	if err != nil {
		return &undeclaredError{fmt.Errorf("connect: %w", err)}
	}
	defer c.end(true)
	defer context.AfterFunc(s.p.ctx, func() { c.wire.Abort(net.ErrClosed) })()
	err = s.p.declareOnOwnChannel(c, exchange)
	if err != nil && !c.refuses(err) {
		return &undeclaredError{fmt.Errorf("connection lost: %w", c.lossReason(err))}
	}
	return err
}

// The broker closes the channel if it refuses the declaration. If the user may not declare the
// exchange, it is enough that it exists.
func (p *Publisher) declareOnOwnChannel(c *connection, exchange string) error {
	return c.longRequest(func() error {
		err := withExistingDurability(p.config, func(config amqp.Config) error {
			return onChannel(c.amqp, func(channel *amqp091.Channel) error { return buildExchange(channel, exchange, config) })
		})
		if !refusesAccess(err) {
			return err
		}
		// This needs no right. A passive declaration does not compare the other arguments.
		missing := onChannel(c.amqp, func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeTopic, true, false, false, false, nil)
		})
		if missing == nil || !refusesDeclaration(missing) {
			return missing
		}
		return err
	})
}

func refusesAccess(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Server && refused.Code == amqp091.AccessRefused
}

// Whether the next declaration needs its own connection. p.mu must be locked.
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

// buildExchange runs the TopologyBuilder while p.mu is unlocked. A panic that reached send would
// make its deferred Unlock end the process.
func buildExchange(channel *amqp091.Channel, exchange string, config amqp.Config) (err error) {
	err = usercode.Guarded(func() error { return config.TopologyBuilder.ExchangeDeclare(channel, exchange, config) })
	if usercode.Stack(err) != "" {
		return fmt.Errorf("the TopologyBuilder panicked: %w", err)
	}
	return err
}

// refuses reports whether err says that the broker or the TopologyBuilder refuses a declaration.
// Otherwise the connection was lost, also if err is the error of a socket.
func (c *connection) refuses(err error) bool {
	if _, ok := errors.AsType[*amqp091.Error](err); !ok && c.wire.Failure() != nil {
		return false
	}
	return refusesDeclaration(err)
}

// If refusesDeclaration returns false, the connection was lost for another reason. Some refusals,
// for example of an unknown exchange type, close the whole connection, see closesConnection.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp091.Error](err)
	if !ok {
		return true // this error was returned by the TopologyBuilder
	}
	return closed.Server && closed.Code != amqp091.ConnectionForced
}

// forbiddenFor limits how long Ping reports a forbidden destination that nobody tries any more.
const forbiddenFor = 5 * time.Minute

// errNewLogin closes a connection that lacks a right.
var errNewLogin = errors.New("the broker refuses access, logging in again")

type forbidden struct {
	err  *PublishError
	last time.Time
}

// forbid records that the broker refuses a destination. If no other message is unconfirmed, it
// closes the connection: the next one gets the present credentials, such as a new token, see
// amqp091.Config.SASL. A young connection is kept, so that a missing right does not delay other
// destinations. p.mu must be locked.
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

// p.mu must be locked.
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

// withExistingDurability declares again with the durability of an existing exchange that differs
// only in it: [TopicExchange] is durable, watermill-amqp v3's NewDurableTopicConfig is not. A lost
// exchange loses no messages: the broker refuses them until the Subscriber has declared it again.
func withExistingDurability(config amqp.Config, declare func(config amqp.Config) error) error {
	err := declare(config)
	if isPreconditionFailed(err) && strings.Contains(err.Error(), "inequivalent arg 'durable' for exchange") {
		config.Exchange.Durable = !config.Exchange.Durable
		return declare(config)
	}
	return err
}

var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for (queue|exchange) `)

// existingRemedy names the field of the configuration that differs from the existing queue or
// exchange, or returns "".
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

var configFields = map[string]string{
	"Queue durable":        "Queue.Durable",
	"Queue auto_delete":    "Queue.AutoDelete",
	"Queue exclusive":      "Queue.Exclusive",
	"Exchange durable":     "Exchange.Durable",
	"Exchange auto_delete": "Exchange.AutoDeleted",
	"Exchange internal":    "Exchange.Internal",
	"Exchange type":        "Exchange.Type",
}
