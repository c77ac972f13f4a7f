package rabbit

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
)

var (
	errConnecting = errors.New("not connected yet")
	errBlocked    = errors.New("blocked by the broker, which is short of memory or disk")
	errReopening  = errors.New("waiting for a channel")
)

// contents are those that have been sent, for their buffers.
var contents = sync.Pool{New: func() any { return new(content) }}

func (p *Publisher) publish(topic string, msg *message.Message, done func(error)) {
	f := &flight{id: msg.UUID, topic: topic, done: done}
	c, _ := contents.Get().(*content)
	err := p.prepare(f, c, msg)
	if err == nil {
		err = p.send(f, c)
	}
	if err != nil {
		p.fail(f, err)
	}
	c.body = nil
	contents.Put(c)
}

// prepare is all that can be done without a connection.
func (p *Publisher) prepare(f *flight, c *content, msg *message.Message) error {
	f.exchange = p.config.Exchange.GenerateName(f.topic)
	f.key = p.config.Publish.GenerateRoutingKey(f.topic)
	for _, name := range [...]struct{ what, value string }{{"exchange", f.exchange}, {"routing key", f.key}} {
		if len(name.value) > maxShortString {
			return f.limit(tooLarge("%s of %d bytes; the limit is %d", name.what, len(name.value), maxShortString))
		}
	}
	if err := p.encode(f, c, msg); err != nil {
		return err
	}
	f.size = c.headerSize() + len(c.body)
	return nil
}

func (p *Publisher) encode(f *flight, c *content, msg *message.Message) error {
	if marshaler, own := p.config.Marshaler.(Marshaler); own { // needs no table in between
		publishing := marshaler.properties(msg)
		c.body = publishing.Body
		if err := c.encode(&publishing, func(b []byte) ([]byte, error) { return appendMetadata(b, msg) }); err != nil {
			return f.limit(err)
		}
		return nil
	}
	publishing, err := p.config.Marshaler.Marshal(msg)
	if err != nil {
		err = redact(err)
		return f.error(ErrRefused, 0, fmt.Sprintf("marshal: %v", err), err)
	}
	dropSteering(publishing.Headers, msg.Metadata)
	c.body = publishing.Body
	err = c.encode(&publishing, func(b []byte) ([]byte, error) {
		return appendFields(b, publishing.Headers, PublishHeader)
	})
	if err != nil {
		return f.limit(err)
	}
	return nil
}

// dropSteering takes out the steering headers that a marshaler took over from
// the metadata. Those that it made itself are its own business.
func dropSteering(headers amqp.Table, metadata message.Metadata) {
	for key, value := range metadata {
		if SteeringHeader(key) && headers[key] == value {
			delete(headers, key)
		}
	}
}

// send hands the message to the connection as soon as there is one with room.
func (p *Publisher) send(f *flight, c *content) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closing:
			return f.error(ErrClosed, 0, "", nil)

		case p.unready() != nil:
			if !p.waitReady() {
				err := p.unready()
				return f.error(ErrUnavailable, 0, err.Error(), err)
			}

		case !p.room(f.size):
			p.wait(nil) // what is outstanding is settled by its deadline

		case !p.session.isDeclared(f.exchange):
			if err := p.session.declare(f.exchange); err != nil {
				return f.refusal(err)
			}

		case c.headerSize() > p.session.frameSize():
			return f.limit(tooLarge("headers of %d bytes; the limit is %d", c.headerSize(), p.session.frameSize()))

		case p.lane.publish(f, c):
			failpoint.Hit("rabbit/published")
			p.count++
			p.bytes += f.size
			if p.dozing {
				p.wakeSettler()
			}
			return nil

		default:
			p.retire(p.lane)
		}
	}
}

// unready says why nothing can be sent, if so.
func (p *Publisher) unready() error {
	switch {
	case p.session == nil:
		return p.down
	case p.session.blocked:
		return errBlocked
	case p.lane == nil:
		return errReopening
	}
	return nil
}

// waitReady waits for a change, unless there has been nothing to send to for
// ReadyTimeout already. It reports false then.
func (p *Publisher) waitReady() bool {
	left := time.Until(p.unreadySince.Add(p.cfg.ReadyTimeout))
	if left <= 0 {
		return false
	}
	limit := time.NewTimer(left)
	defer limit.Stop()
	return p.wait(limit.C) || p.unready() == nil
}

func (p *Publisher) room(size int) bool {
	return p.count < p.cfg.Window && (p.count == 0 || p.bytes+size <= p.cfg.WindowBytes)
}

// fail reports a message that was not sent, from the same goroutine as all
// others: the caller may hold a lock that done takes.
func (p *Publisher) fail(f *flight, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.instruments.published.Add(1, outcomeOf(err))
		go f.done(err)
		return
	}
	p.failed = append(p.failed, verdict{f, err})
	p.wakeSettler()
}
