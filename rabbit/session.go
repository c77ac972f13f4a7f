package rabbit

import (
	"errors"
	"fmt"
	"math"

	amqp "github.com/rabbitmq/amqp091-go"
)

// session is one connection of a Publisher.
type session struct {
	*link

	p      *Publisher
	blocks chan amqp.Blocking

	// Guarded by Publisher.mu.
	blocked   bool
	declared  map[string]struct{}
	declaring map[string]*declaration
}

// declaration is one under way; err is set when done is closed.
type declaration struct {
	done chan struct{}
	err  error
}

func (p *Publisher) newSession(l *link) *session {
	return &session{
		link:      l,
		p:         p,
		blocks:    l.conn.NotifyBlocked(make(chan amqp.Blocking, 16)), // the reader waits when it is full
		declared:  make(map[string]struct{}),
		declaring: make(map[string]*declaration),
	}
}

// request calls f, which waits for answers of the broker. Publisher.mu is not
// held.
func (s *session) request(f func() error) error {
	return s.link.request(s.p.ctx, f)
}

// frameSize is what one frame may take on this connection.
func (s *session) frameSize() int {
	if size := s.conn.Config.FrameSize; size > 0 {
		return size
	}
	return math.MaxInt
}

func (s *session) isDeclared(exchange string) bool {
	if exchange == "" {
		return true // the default exchange is always there
	}
	_, ok := s.declared[exchange]
	return ok
}

// declare declares the exchange, or waits for whoever does, or for another one
// if there are as many as there may be channels. An error is the broker's no;
// if the connection is lost over it, there is none, and the lane is retired.
// Publisher.mu is held, but not while waiting.
func (s *session) declare(exchange string) error {
	if d := s.declaring[exchange]; d != nil {
		s.p.await(d)
		return d.err
	}
	if len(s.declaring) == int(s.conn.Config.ChannelMax) {
		for _, d := range s.declaring {
			s.p.await(d)
			return nil
		}
	}

	d := &declaration{done: make(chan struct{})}
	s.declaring[exchange] = d
	s.p.mu.Unlock()
	err := s.request(func() error { return s.declareNow(exchange) })
	s.p.mu.Lock()

	delete(s.declaring, exchange)
	defer close(d.done)
	switch {
	case err == nil:
		s.declared[exchange] = struct{}{}
	case refusesDeclaration(err):
		d.err = err
	case errors.Is(err, amqp.ErrChannelMax): // a channel that was closed is about to be free
	default:
		s.mux.abort(err)
		if s.p.session == s {
			s.p.lane = nil
			s.p.noteReadiness()
		}
	}
	return d.err
}

// await waits for a declaration. The lock is held, but not while waiting.
func (p *Publisher) await(d *declaration) {
	p.mu.Unlock()
	defer p.mu.Lock()
	<-d.done
}

// declareNow uses a channel of its own, for the broker closes the channel if it
// refuses.
func (s *session) declareNow(exchange string) error {
	return onChannel(s.conn, func(channel *amqp.Channel) error { return s.p.build(channel, exchange) })
}

// build gives a panic back as an error: who publishes holds a lock again when it
// goes on.
func (p *Publisher) build(channel *amqp.Channel, exchange string) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the TopologyBuilder panicked: %v", value)
		}
	}()
	return p.config.TopologyBuilder.ExchangeDeclare(channel, exchange, p.config)
}

// refusesDeclaration tells a no to the declaration from a connection that died.
// The broker closes the connection over some: an exchange type that it does not
// know, for one.
func refusesDeclaration(err error) bool {
	closed, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return true // the TopologyBuilder's own
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
