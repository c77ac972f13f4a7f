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

// Ping waits until messages can be published, and returns nil. If the broker
// refuses the login or the virtual host, or TLS fails, it returns that at once:
// the Publisher keeps trying, but nobody should wait for it. Whatever else stands
// in the way is the error when ctx ends, such as an unknown host, a refused
// connection, or a broker that blocks publishers. The error names the remedy and
// has no credentials. It is [ErrClosed] after Close.
//
// Call it when a service starts: NewPublisher does not need the broker.
func (p *Publisher) Ping(ctx context.Context) error {
	for {
		p.mu.Lock()
		why, down, closing := p.unready(), p.session == nil, p.closing
		changed := p.changed
		p.waited = true
		p.mu.Unlock()
		switch {
		case closing:
			return ErrClosed
		case why == nil:
			return nil
		case down && permanent(why):
			return pingError(p.config.Connection, why)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(pingError(p.config.Connection, why), ctx.Err())
		}
	}
}

// Ping waits until there is a connection to consume over, and returns nil. Its
// errors are those of [Publisher.Ping].
func (s *Subscriber) Ping(ctx context.Context) error {
	for {
		s.mu.Lock()
		l, why, changed, closed := s.link, s.down, s.changed, s.closed
		s.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case l != nil && !l.conn.IsClosed():
			return nil
		case l == nil && permanent(why):
			return pingError(s.config.Connection, why)
		case l != nil:
			why = errConnectionClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(pingError(s.config.Connection, why), ctx.Err())
		}
	}
}

// permanent reports whether an error of connecting lasts until somebody changes
// the configuration or the broker. A broker that is starting gives others.
func permanent(err error) bool { return refusesLogin(err) || refusesVHost(err) || failsTLS(err) }

// refusesLogin is mostly amqp091's conclusion: the broker only closes the
// connection.
func refusesLogin(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Code == amqp091.AccessRefused && refused != amqp091.ErrVhost
}

// refusesVHost leaves out limits of connections: others may end theirs.
func refusesVHost(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && (refused == amqp091.ErrVhost ||
		refused.Code == amqp091.NotAllowed && refused.Server && !strings.Contains(refused.Reason, "limit"))
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

// pingError says what stands in the way of a connection, and what to do.
func pingError(config amqp.ConnectionConfig, why error) error {
	var host, vhost string
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil { // which it was when it was validated
		host, vhost = net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost
	}
	switch {
	case refusesLogin(why):
		return fmt.Errorf("rabbit: RabbitMQ at %s refuses the login; check user and password in Connection.AmqpURI: %w", host, why)
	case refusesVHost(why):
		return fmt.Errorf("rabbit: RabbitMQ at %s refuses virtual host %q; create it with rabbitmqctl add_vhost, "+
			"and give the user rights with rabbitmqctl set_permissions: %w", host, vhost, why)
	case failsTLS(why):
		return fmt.Errorf("rabbit: no TLS connection to RabbitMQ at %s; check Connection.TLSConfig, the broker's certificate, "+
			"and that the port is the one for TLS: %w", host, why)
	case errors.Is(why, errBlocked):
		return fmt.Errorf("rabbit: RabbitMQ at %s takes no messages; free memory or disk there: %w", host, why)
	}
	return fmt.Errorf("rabbit: no connection to RabbitMQ at %s; check host and port in Connection.AmqpURI, "+
		"and that the broker runs: %w", host, why)
}
