package rabbit

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
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
	s.p.mu.Unlock()
	err := s.request(func() error { return s.declareOnOwnChannel(exchange) })
	s.p.mu.Lock()

	delete(s.declaring, exchange)
	defer close(d.done)
	switch {
	case err == nil:
		s.declared[exchange] = struct{}{}
	case refusesDeclaration(err):
		d.err = err
	case errors.Is(err, amqp.ErrChannelMax): // wait, because a closed channel will be free soon
	default:
		s.wire.Abort(err)
		if s.p.session == s {
			s.p.channel = nil
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

// declareOnOwnChannel declares the exchange on a separate channel, because the broker
// closes the channel if it refuses the declaration.
func (s *session) declareOnOwnChannel(exchange string) error {
	return onChannel(s.amqp, func(channel *amqp.Channel) error { return s.p.buildExchange(channel, exchange) })
}

// buildExchange declares the exchange, and returns a panic of the TopologyBuilder as an
// error. The TopologyBuilder runs while p.mu is unlocked. If a panic reached send, the
// deferred Unlock in send would unlock p.mu a second time, and Go would end the
// process.
func (p *Publisher) buildExchange(channel *amqp.Channel, exchange string) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the TopologyBuilder panicked: %v", value)
		}
	}()
	return p.config.TopologyBuilder.ExchangeDeclare(channel, exchange, p.config)
}

// refusesDeclaration reports whether err means that the exchange cannot be declared. If
// it returns false, the connection was lost for another reason. Some declarations, for
// example of an unknown exchange type, are refused by closing the whole connection.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return true // this error was returned by the TopologyBuilder
	}
	if !closed.Server {
		return false
	}
	switch closed.Code {
	case amqp.CommandInvalid, amqp.NotAllowed, amqp.NotImplemented:
		return true
	}
	return closed.Recover
}
