package rabbit

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declaration is a declaration in progress. err is set before done is closed.
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

// declare declares the exchange. If a declaration of the same exchange is in
// progress, it waits for that one. If there are as many declarations as channels,
// it waits for one of them and returns. The error is the broker's refusal; if the
// connection is lost instead, declare returns nil and there is no confirm channel
// any more. Publisher.mu must be held; declare unlocks it while it waits.
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
	case errors.Is(err, amqp.ErrChannelMax): // a closed channel is about to be free
	default:
		s.wire.Abort(err)
		if s.p.session == s {
			s.p.channel = nil
			s.p.updateReadiness()
		}
	}
	return d.err
}

// await waits for a declaration. p.mu must be held; await unlocks it meanwhile.
func (p *Publisher) await(d *declaration) {
	p.mu.Unlock()
	defer p.mu.Lock()
	<-d.done
}

// declareOnOwnChannel uses a separate channel, because the broker closes the
// channel if it refuses the declaration.
func (s *session) declareOnOwnChannel(exchange string) error {
	return onChannel(s.amqp, func(channel *amqp.Channel) error { return s.p.buildExchange(channel, exchange) })
}

// buildExchange returns a panic as an error: send unlocks p.mu when it unwinds, and
// declare has not locked it again.
func (p *Publisher) buildExchange(channel *amqp.Channel, exchange string) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the TopologyBuilder panicked: %v", value)
		}
	}()
	return p.config.TopologyBuilder.ExchangeDeclare(channel, exchange, p.config)
}

// refusesDeclaration distinguishes a refused declaration from a lost connection.
// The broker closes the connection over some declarations, for example one with
// an unknown exchange type.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return true // the TopologyBuilder's own error
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
