package rabbit

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
)

var (
	errConnecting = errors.New("not connected yet")
	errBlocked    = errors.New("blocked by the broker, which is short of memory or disk")
	errReopening  = errors.New("no confirm channel is open yet")
)

// contents contains unused Contents, so that their buffers can be used again.
var contents = sync.Pool{New: func() any { return new(amqpwire.Content) }}

func (p *Publisher) publish(topic string, msg *message.Message, done func(error)) {
	pub := &publication{id: msg.UUID, topic: topic, done: done}
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

// removeSteering removes headers that control the broker if a marshaler has copied them
// from the metadata. It keeps headers that the marshaler has set itself.
func removeSteering(headers amqp.Table, metadata message.Metadata) {
	for key, value := range metadata {
		if meta.Steering(key) && headers[key] == value {
			delete(headers, key)
		}
	}
}

// send writes the message to the connection. It waits until there is a connection, and
// until the window has room.
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

		case !p.hasRoom(pub.size):
			p.wait(nil) // the wait ends, because each message leaves the window at its deadline at the latest

		case !p.session.isDeclared(pub.exchange):
			if err := p.session.declare(pub.exchange); err != nil {
				return pub.notDeclared(err)
			}

		case c.HeaderSize() > p.session.frameSize():
			return pub.notEncoded(amqpwire.TooLarge("headers", c.HeaderSize(), p.session.frameSize()))

		case p.channel.publish(pub, c):
			failpoint.Hit("rabbit/published")
			p.count++
			p.bytes += pub.size
			if p.idle {
				p.wakeConfirmLoop()
			}
			return nil

		default:
			p.retire(p.channel)
		}
	}
}

// unready returns why no message can be sent now, or nil.
func (p *Publisher) unready() error {
	switch {
	case p.session == nil:
		return p.down
	case p.session.blocked:
		return errBlocked
	case p.channel == nil:
		return errReopening
	}
	return nil
}

// waitReady waits until the state of the Publisher changes. It returns false if no
// message could be sent for ReadyTimeout.
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

// fail makes the confirm loop report err for a message that was not sent. It does not
// call done itself, because the caller of PublishAsync may hold a lock that done needs.
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
