package rabbit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

// Ping waits until the Publisher can publish messages. Call it when a service starts, because
// NewPublisher does not check that the broker can be reached.
//
// If the broker refuses the login or the virtual host, or TLS fails, Ping returns the error
// immediately, while the Publisher keeps trying. Any other problem, such as an unknown host, a
// refused connection, or a broker that blocks publishers, is returned when ctx ends. The error says
// what to do, and contains no credentials.
//
// If the broker has refused a destination because the user lacks a right, and has confirmed no
// message for it since, Ping returns [ErrForbidden], and after Close [ErrClosed].
func (p *Publisher) Ping(ctx context.Context) error {
	for {
		p.mu.Lock()
		reason, closing, refused := p.unready(), p.closing, p.forbiddenNow()
		changed := p.changed
		p.waiting = true
		p.mu.Unlock()
		switch {
		case closing:
			return ErrClosed
		case reason == nil && refused != nil:
			return pingError(p.config.Connection, refused)
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

// Ping waits until the Subscriber has a connection. It returns the errors of [Publisher.Ping], and
// [ErrForbidden] while a running subscription is interrupted because the user lacks a right.
func (s *Subscriber) Ping(ctx context.Context) error {
	for {
		s.mu.Lock()
		c, reason, changed, closed, refused := s.conn, s.down, s.changed, s.closed, s.forbiddenNow()
		s.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case c != nil && !c.amqp.IsClosed() && refused != nil:
			return pingError(s.config.Connection, refused)
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

// permanent errors last until somebody changes the configuration or the broker. A broker that is
// still starting causes none.
func permanent(err error) bool { return refusesLogin(err) || refusesVHost(err) || failsTLS(err) }

// The broker usually closes the connection without a reason. amqp091 then guesses that the login
// was refused, and refusesLogin relies on this.
func refusesLogin(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Code == amqp091.AccessRefused && refused != amqp091.ErrVhost
}

// refusesVHost returns false at the connection limit of the virtual host, because another client
// may disconnect.
//
// For a refusal, the broker always sends a reason. amqp091.ErrVhost means that the connection was
// lost meanwhile, for example because the broker stopped, or this process was suspended.
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

func pingError(config amqp.ConnectionConfig, reason error) error {
	var host, vhost string
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil { // the URI is valid, because the constructor has validated it
		host, vhost = net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost
	}
	switch {
	case errors.Is(reason, ErrForbidden):
		return fmt.Errorf("rabbit: RabbitMQ at %s refuses access: %w", host, reason)
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

// userinfo matches from "//" to the last "@" of a word, perhaps of a path, without harm.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact removes credentials in URLs. Every error of another package must be redacted before it is
// logged or returned. One with credentials is replaced, because they would show after unwrapping
// it.
func redact(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if safe := redactText(text); safe != text {
		return errors.New(safe)
	}
	return err
}

func redactText(text string) string {
	return userinfo.ReplaceAllString(text, "//***@")
}
