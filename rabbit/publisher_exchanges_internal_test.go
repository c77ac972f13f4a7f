package rabbit

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A declaration counts as refused only if the broker or the TopologyBuilder returned
// the error. After any other error, the exchange is declared again.
func TestRefusedDeclarationsAreToldFromLostConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("from the TopologyBuilder"), true},
		{amqp091.ErrClosed, false},
		{&amqp091.Error{Code: amqp091.PreconditionFailed, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.AccessRefused, Recover: true, Server: true}, true},
		{&amqp091.Error{Code: amqp091.CommandInvalid, Server: true}, true}, // the broker closes the connection
		{&amqp091.Error{Code: amqp091.NotAllowed, Server: true}, true},
		{&amqp091.Error{Code: amqp091.NotImplemented, Server: true}, true},
		{&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}, false},
		{&amqp091.Error{Code: amqp091.InternalError, Server: true}, false},
		{&amqp091.Error{Code: amqp091.NotAllowed, Recover: true}, false}, // the client's own error
	} {
		for _, err := range []error{c.err, fmt.Errorf("declare: %w", c.err)} {
			if got := refusesDeclaration(err); got != c.want {
				t.Errorf("refusesDeclaration(%v) is %t", err, got)
			}
		}
	}
}

// If an exchange is already being declared, a second declaration waits for the first.
func TestDeclarationWaitsForTheSameExchange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &declaration{done: make(chan struct{})}
		s := &session{p: &Publisher{}, declaring: map[string]*declaration{"x": d}}
		declared := make(chan error, 1)
		go func() {
			s.p.mu.Lock()
			defer s.p.mu.Unlock()
			declared <- s.declare("x")
		}()
		synctest.Wait()
		if len(declared) > 0 {
			t.Error("it did not wait")
		}
		d.err = errors.New("refused")
		close(d.done)
		if err := <-declared; !errors.Is(err, d.err) {
			t.Errorf("got %v, want %v", err, d.err)
		}
	})
}

// If the connection is lost during a declaration, the Publisher has no confirm channel
// until it reconnects. Messages that are sent meanwhile wait for ReadyTimeout.
func TestLostConnectionDuringADeclarationIsAnOutage(t *testing.T) {
	t.Parallel()
	for current, name := range map[bool]string{true: "the current connection", false: "an old connection"} {
		c := brokerConnection(t)
		config := amqp.NewDurablePubSubConfig("amqp://unused", nil)
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
		p := &Publisher{config: config, ctx: t.Context(), changed: make(chan struct{})}
		s := p.newSession(c)
		p.session, p.channel = s, &confirmChannel{}
		if !current {
			p.session = &session{}
		}
		c.end(true)
		p.mu.Lock()
		err := s.declare("x")
		p.mu.Unlock()
		if err != nil || s.isDeclared("x") || len(s.declaring) != 0 {
			t.Errorf("%s: got %v, want no refusal; declared is %t", name, err, s.isDeclared("x"))
		}
		if (p.channel == nil) != current || p.unreadySince.IsZero() == current {
			t.Errorf("%s: the channel is %p, and no message can be sent since %v", name, p.channel, p.unreadySince)
		}
	}
}
