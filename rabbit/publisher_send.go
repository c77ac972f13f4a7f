package rabbit

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

var (
	errConnecting = errors.New("not connected yet")
	errBlocked    = errors.New("blocked by the broker, which is short of memory or disk")
	errReopening  = errors.New("no confirm channel is open yet")
)

var contents = sync.Pool{New: func() any { return new(amqpwire.Content) }}

func (p *Publisher) publish(pub *publication, msg *message.Message) {
	c, _ := contents.Get().(*amqpwire.Content)
	err := p.prepare(pub, c, msg)
	if err == nil {
		err = p.send(pub, c)
	}
	if err != nil {
		p.fail(pub, err)
	}
	c.Body = nil
	contents.Put(c)
}

// prepare does the part of publishing that needs no connection.
func (p *Publisher) prepare(pub *publication, c *amqpwire.Content, msg *message.Message) error {
	pub.exchange = p.config.Exchange.GenerateName(pub.topic)
	pub.key = p.config.Publish.GenerateRoutingKey(pub.topic)
	for _, name := range [...]struct{ what, value string }{{"exchange", pub.exchange}, {"routing key", pub.key}} {
		if len(name.value) > amqpwire.MaxShortString {
			return pub.notEncoded(amqpwire.TooLarge(name.what, len(name.value), amqpwire.MaxShortString))
		}
	}
	if err := p.encode(pub, c, msg); err != nil {
		return err
	}
	pub.size = c.HeaderSize() + len(c.Body)
	return nil
}

func (p *Publisher) encode(pub *publication, c *amqpwire.Content, msg *message.Message) error {
	if marshaler, own := p.config.Marshaler.(Marshaler); own { // Marshaler of this package needs no table of headers
		publishing := marshaler.properties(msg)
		c.Body = publishing.Body
		if err := c.Encode(&publishing, func(b []byte) ([]byte, error) { return appendMetadata(b, msg) }); err != nil {
			return pub.notEncoded(err)
		}
		return nil
	}
	publishing, err := p.config.Marshaler.Marshal(msg)
	if err != nil {
		err = redact(err)
		return pub.error(ErrRefused, 0, fmt.Sprintf("marshal: %v", err), err)
	}
	removeSteering(publishing.Headers, msg.Metadata)
	c.Body = publishing.Body
	err = c.Encode(&publishing, func(b []byte) ([]byte, error) {
		return amqpwire.AppendHeaders(b, publishing.Headers)
	})
	if err != nil {
		return pub.notEncoded(err)
	}
	return nil
}

// removeSteering keeps headers that the marshaler has set itself, and removes those from the
// metadata that control the broker.
func removeSteering(headers amqp091.Table, metadata message.Metadata) {
	for key, value := range metadata {
		if meta.Steering(key) && headers[key] == value {
			delete(headers, key)
		}
	}
}

// send waits until there is a connection, and room in the window.
func (p *Publisher) send(pub *publication, c *amqpwire.Content) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closing:
			return pub.error(ErrClosed, 0, "", nil)

		case p.unready() != nil:
			if !p.waitReady() {
				err := p.unready()
				return pub.error(ErrUnavailable, 0, err.Error(), err)
			}

		case pub.unordered && !p.spread:
			p.spread = true
			notify(p.reopen)

		case !p.hasRoom(pub.size):
			p.wait(nil) // the wait ends, because each message leaves the window at its deadline at the latest

		case !p.session.isDeclared(pub.exchange):
			s := p.session
			if err := s.declare(pub.exchange); err != nil {
				refused := pub.notDeclared(err)
				if refused.is(ErrForbidden) {
					p.forbid(s, refused, p.count == 0)
				}
				return refused
			}

		case c.HeaderSize() > p.session.frameSize():
			return pub.notEncoded(amqpwire.TooLarge("headers", c.HeaderSize(), p.session.frameSize()))

		case p.next(pub).publish(pub, c):
			failpoint.Hit("rabbit/published")
			p.turn++
			p.count++
			p.bytes += pub.size
			if p.idle {
				p.wakeConfirmLoop()
			}
			return nil

		default:
			p.retire(p.next(pub))
		}
	}
}

// Messages with an order use one channel, the others take turns. p.mu must be locked.
func (p *Publisher) next(pub *publication) *confirmChannel {
	if !pub.unordered {
		return p.current[0]
	}
	return p.current[p.turn%len(p.current)]
}

func (p *Publisher) unready() error {
	switch {
	case p.session == nil:
		return p.down
	case p.session.blocked:
		return errBlocked
	case len(p.current) == 0:
		return errReopening
	}
	return nil
}

// waitReady returns false if no message could be sent for ReadyTimeout.
func (p *Publisher) waitReady() bool {
	left := time.Until(p.unreadySince.Add(p.cfg.ReadyTimeout))
	if left <= 0 {
		return false
	}
	limit := time.NewTimer(left)
	defer limit.Stop()
	return p.wait(limit.C) || p.unready() == nil
}

func (p *Publisher) hasRoom(size int) bool {
	return p.count < p.cfg.Window && (p.count == 0 || p.bytes+size <= p.cfg.WindowBytes)
}

// The caller of PublishAsync may hold a lock that done needs, so the confirm loop calls it.
func (p *Publisher) fail(pub *publication, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.instruments.published.Add(1, seriesOf(err))
		go pub.done(err)
		return
	}
	p.failed = append(p.failed, outcome{pub, err})
	p.wakeConfirmLoop()
}

type publication struct {
	id, topic, exchange, key string

	size      int // size of headers and body in bytes
	done      func(error)
	unordered bool // may be sent over any of the current channels

	number   uint64 // number of the publish on its confirm channel
	sent     time.Time
	deadline time.Time

	settled bool // the broker's ack or nack has arrived

	// overdue means that the outcome was reported as unknown. The publication stays pending,
	// because it may still make the broker close the channel.
	overdue bool
}

// err is nil if the publication was confirmed.
type outcome struct {
	pub *publication
	err error
}

func (pub *publication) error(kind error, code int, reason string, cause error) *PublishError {
	return &PublishError{
		MessageID:  pub.id,
		Topic:      pub.topic,
		Exchange:   pub.exchange,
		RoutingKey: pub.key,
		Code:       code,
		Reason:     reason,
		kind:       kind,
		cause:      cause,
	}
}

// kind is what attributeClose has chosen.
func (pub *publication) channelClosed(kind error, reason *amqp091.Error) *PublishError {
	if !reason.Server {
		return pub.error(kind, 0, "connection lost: "+redactText(reason.Reason), nil)
	}
	return pub.error(kind, reason.Code, redactText(reason.Reason), reason)
}

func (pub *publication) notEncoded(err error) *PublishError {
	kind := ErrTooLarge
	if e, ok := errors.AsType[*amqpwire.EncodeError](err); ok && !e.TooLarge {
		kind = ErrInvalid
	}
	return pub.error(kind, 0, err.Error(), nil)
}

// If the name of the exchange is reserved, no right helps, and the message would wait forever.
func declineKind(exchange string, reason *amqp091.Error) error {
	switch reason.Code {
	case amqp091.AccessRefused:
		if strings.HasPrefix(exchange, "amq.") {
			return ErrRefused
		}
		return ErrForbidden
	case amqp091.InternalError: // for example, the broker's metadata store has lost its majority
		return ErrUnavailable
	}
	return ErrRefused
}

func (pub *publication) notDeclared(err error) *PublishError {
	if refused, ok := errors.AsType[*amqp091.Error](err); ok {
		e := pub.error(declineKind(pub.exchange, refused), refused.Code, "declare exchange: "+redactText(refused.Reason), redact(err))
		e.oneTopic = e.is(ErrUnavailable)
		return e
	}
	kind := ErrRefused
	_, unanswered := errors.AsType[*undeclaredError](err)
	if unanswered {
		kind = ErrUnavailable
	}
	err = redact(err)
	e := pub.error(kind, 0, "declare exchange: "+err.Error(), err)
	e.oneTopic = unanswered
	return e
}
