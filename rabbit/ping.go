package rabbit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Ping waits until the Publisher can publish messages, and returns nil. Call it when a
// service starts, because NewPublisher does not check that the broker can be reached.
//
// If the broker refuses the login or the virtual host, or if TLS fails, Ping returns
// the error immediately, but the Publisher keeps trying in the background. Any other
// problem is returned as an error when ctx ends. Examples are an unknown host, a
// refused connection, or a broker that blocks publishers. The error says what to do,
// and contains no credentials. After Close, Ping returns [ErrClosed].
func (p *Publisher) Ping(ctx context.Context) error {
	for {
		p.mu.Lock()
		reason, closing := p.unready(), p.closing
		changed := p.changed
		p.waiting = true
		p.mu.Unlock()
		switch {
		case closing:
			return ErrClosed
		case reason == nil:
			return nil
		case permanent(reason):
			return pingError(p.config.Connection, reason)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(pingError(p.config.Connection, reason), ctx.Err())
		}
	}
}

// Ping waits until the Subscriber has a connection, and returns nil. It returns the
// same errors as [Publisher.Ping].
func (s *Subscriber) Ping(ctx context.Context) error {
	for {
		s.mu.Lock()
		c, reason, changed, closed := s.conn, s.down, s.changed, s.closed
		s.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case c != nil && !c.amqp.IsClosed():
			return nil
		case c == nil && permanent(reason):
			return pingError(s.config.Connection, reason)
		case c != nil:
			reason = errConnectionClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(pingError(s.config.Connection, reason), ctx.Err())
		}
	}
}

// permanent reports whether a connection error lasts until somebody changes the
// configuration or the broker. Errors that occur because the broker is still starting
// are not permanent.
func permanent(err error) bool { return refusesLogin(err) || refusesVHost(err) || failsTLS(err) }

// refusesLogin reports whether the broker refuses the login. The broker usually refuses
// a login by closing the connection without a reason. amqp091 then guesses that the
// login was refused, and refusesLogin relies on this guess.
func refusesLogin(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Code == amqp091.AccessRefused && refused != amqp091.ErrVhost
}

// refusesVHost reports whether the broker refuses the virtual host. If the connection
// limit of the virtual host is reached, refusesVHost returns false, because a later
// attempt can succeed after another client has disconnected.
//
// For a refusal, the broker always sends a reason. amqp091.ErrVhost means that the
// connection was lost while the virtual host was opened, for example because the broker
// stopped, or because this process was suspended for longer than the broker waits.
func refusesVHost(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Code == amqp091.NotAllowed && refused.Server && !strings.Contains(refused.Reason, "limit")
}

func failsTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.UnknownAuthorityError](err)
	return ok
}

// pingError returns an error that contains reason, the host, and what to do.
func pingError(config amqp.ConnectionConfig, reason error) error {
	var host, vhost string
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil { // the URI is valid, because the constructor has validated it
		host, vhost = net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost
	}
	switch {
	case refusesLogin(reason):
		return fmt.Errorf("rabbit: RabbitMQ at %s refuses the login; check user and password in Connection.AmqpURI: %w", host, reason)
	case refusesVHost(reason):
		return fmt.Errorf("rabbit: RabbitMQ at %s refuses virtual host %q; create it with rabbitmqctl add_vhost, "+
			"and give the user rights with rabbitmqctl set_permissions: %w", host, vhost, reason)
	case failsTLS(reason):
		return fmt.Errorf("rabbit: no TLS connection to RabbitMQ at %s; check Connection.TLSConfig, the broker's certificate, "+
			"and that the port is the one for TLS: %w", host, reason)
	case errors.Is(reason, errBlocked):
		return fmt.Errorf("rabbit: RabbitMQ at %s accepts no messages; free memory or disk there: %w", host, reason)
	}
	return fmt.Errorf("rabbit: no connection to RabbitMQ at %s; check host and port in Connection.AmqpURI, "+
		"and that the broker runs: %w", host, reason)
}
