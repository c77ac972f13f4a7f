package rabbit

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declaration is a declaration of an exchange that is in progress. err is set before
// done is closed.
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

// declare declares the exchange. If the same exchange is being declared already, it
// waits for that declaration. If as many exchanges are being declared as there are
// channels, it waits for the end of one of these declarations and returns nil without
// declaring exchange: the caller tries again. It returns an error if the broker
// refuses the declaration. If the connection is lost instead, it returns nil, and
// there is no confirm channel any more. Publisher.mu must be held; declare unlocks it
// while it waits.
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
	case errors.Is(err, amqp.ErrChannelMax): // a closed channel will be free soon
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

// declareOnOwnChannel declares the exchange on a separate channel, because the broker
// closes the channel if it refuses the declaration.
func (s *session) declareOnOwnChannel(exchange string) error {
	return onChannel(s.amqp, func(channel *amqp.Channel) error { return s.p.buildExchange(channel, exchange) })
}

// buildExchange declares the exchange, and returns a panic as an error. Otherwise send
// would unlock p.mu while the panic unwinds, although declare has not locked it again.
func (p *Publisher) buildExchange(channel *amqp.Channel, exchange string) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the TopologyBuilder panicked: %v", value)
		}
	}()
	return p.config.TopologyBuilder.ExchangeDeclare(channel, exchange, p.config)
}

// refusesDeclaration reports whether err means that the broker refused the declaration,
// and not that the connection was lost. The broker closes the connection because of
// some declarations, for example of an unknown exchange type.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return true // this error comes from the TopologyBuilder
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
