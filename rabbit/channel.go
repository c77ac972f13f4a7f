package rabbit

import (
	"fmt"
	"strconv"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// channel is one for publishing, in confirm mode. What comes in for it is noted
// in the order in which it comes, so a return is there before its ack.
type channel struct {
	mux     *mux
	number  uint16
	changed func()
	ready   chan struct{} // closed when the channel is open, or closed

	// The reader's.
	opened    bool
	returning *answer // its content is still to come
	remaining uint64  // bytes of its body

	mu      sync.Mutex
	answers []answer
	closed  *amqp.Error
	left    bool // nobody wants to hear of it any more
}

// answer is the broker's to a publish, or to all up to this one.
type answer struct {
	number   uint64
	kind     answerKind
	multiple bool
	code     uint16 // of a return
	text     string
}

type answerKind byte

const (
	answerAck answerKind = iota
	answerNack
	answerReturn // another comes
)

// await waits for the broker to open the channel.
func (c *channel) await() error {
	<-c.ready
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return c.closed
	}
	return nil
}

// publish hands the message to the connection's write buffer. It reports false
// if it could not.
func (c *channel) publish(number uint64, f *flight, content *content, frameSize int) bool {
	c.mu.Lock()
	defer c.mu.Unlock() // or it could come behind our answer to a close, over which the broker closes the connection
	return c.closed == nil && nil == c.mux.compose(func(b []byte) []byte {
		return appendPublish(b, c.number, number, f.exchange, f.key, content, frameSize)
	})
}

// receive notes what a frame says.
func (c *channel) receive(f frame) error {
	switch f.kind {
	case frameHeader:
		return c.receiveHeader(f.payload)
	case frameBody:
		return c.receiveBody(uint64(len(f.payload)))
	}
	method, arguments := f.method()
	switch method {
	case channelOpenOk:
	case confirmSelectOk:
		if !c.opened {
			c.opened = true
			close(c.ready)
		}
	case basicAck:
		c.note(answer{number: arguments.uint64(), multiple: arguments.uint8()&1 != 0})
	case basicNack:
		c.note(answer{number: arguments.uint64(), multiple: arguments.uint8()&1 != 0, kind: answerNack})
	case basicReturn:
		c.returning = &answer{kind: answerReturn, code: arguments.uint16(), text: arguments.short()}
	case channelClose:
		c.end(closeReason(arguments))
		c.mux.release(c.number)
		return c.mux.compose(func(b []byte) []byte { return appendMethod(b, c.number, channelCloseOk) })
	case channelCloseOk:
		c.mux.release(c.number)
	default:
		return fmt.Errorf("%w that is understood: type %d, method %d.%d", errBadFrame, f.kind, method>>16, method&0xffff)
	}
	return nil
}

// receiveHeader is of the content header of a message that is returned.
func (c *channel) receiveHeader(payload []byte) error {
	if c.returning == nil {
		return errBadFrame
	}
	number, err := strconv.ParseUint(textHeader(payload, PublishHeader), 36, 64)
	if err == nil {
		c.returning.number = number
	}
	w := wire(payload)
	w.take(4)
	c.remaining = w.uint64()
	return c.receiveBody(0)
}

func (c *channel) receiveBody(size uint64) error {
	if c.returning == nil || size > c.remaining {
		return errBadFrame
	}
	if c.remaining -= size; c.remaining == 0 {
		c.note(*c.returning)
		c.returning = nil
	}
	return nil
}

func (c *channel) note(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.answers = append(c.answers, a)
	}
}

// take returns what was noted, in a slice that was given back by an earlier
// call, and why the channel is closed, if it is: then nothing more will be noted.
func (c *channel) take(scratch []answer) ([]answer, *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := c.answers
	c.answers = scratch[:0]
	return answers, c.closed
}

// end notes that the channel is closed.
func (c *channel) end(reason *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return
	}
	c.closed = reason
	if !c.opened {
		c.opened = true
		close(c.ready)
	}
}

// leave closes the channel, without waiting for the broker's answer: it can
// take as long as a queue that is stuck.
func (c *channel) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if c.closed == nil {
		// A connection that cannot be written to is closed already.
		_ = c.mux.compose(func(b []byte) []byte {
			return appendMethod(b, c.number, channelClose, 0, 200, 0, 0, 0, 0, 0)
		})
	}
}

// closeReason reads the arguments of a close by the broker.
func closeReason(arguments wire) *amqp.Error {
	code := int(arguments.uint16())
	reason := &amqp.Error{Code: code, Reason: arguments.short(), Server: true}
	switch code {
	case amqp.ContentTooLarge, amqp.NoRoute, amqp.NoConsumers,
		amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		reason.Recover = true // of the channel, not of the connection
	}
	return reason
}
