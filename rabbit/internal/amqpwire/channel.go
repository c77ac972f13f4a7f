package amqpwire

import (
	"fmt"
	"strconv"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Channel is an AMQP channel in confirm mode, from [Conn.OpenChannel]. It records the broker's
// responses in the order of their arrival, the return of a message before its ack.
type Channel struct {
	conn   *Conn
	number uint16
	notify func()
	ready  chan struct{} // closed when the channel was opened, or was closed instead

	// Only the goroutine that reads the connection uses this field and the next two.
	opened    bool
	returning *Response // returned message that has not arrived completely
	remaining uint64    // number of bytes of the returned message's body that are still missing

	mu        sync.Mutex
	responses []Response
	closed    *amqp.Error
	left      bool // Close was called
}

// Response is the broker's response to a publish, or if Multiple is true, to all earlier ones
// without a response, too.
type Response struct {
	Number   uint64
	Kind     ResponseKind
	Multiple bool
	Code     uint16 // set for a Return
	Text     string // set for a Return
}

// ResponseKind is the kind of a [Response].
type ResponseKind byte

// An Ack or a Nack comes last. For an unroutable message, a Return comes before the Ack.
const (
	Ack ResponseKind = iota
	Nack
	Return
)

// WaitOpen waits until the broker has opened the channel, or returns why it was closed.
func (c *Channel) WaitOpen() error {
	<-c.ready
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return c.closed
	}
	return nil
}

// Publish appends a mandatory publish to the connection's write buffer. number is 1 for the first
// publish on a channel, 2 for the second, and so on. exchange and key have up to [MaxShortString]
// bytes. Publish returns false if the channel or the connection is closed.
func (c *Channel) Publish(number uint64, exchange, key string, content *Content, frameSize int) bool {
	c.mu.Lock()
	defer c.mu.Unlock() // a publish after our reply to a channel close would make the broker close the connection
	return c.closed == nil && nil == c.conn.compose(func(b []byte) []byte {
		return appendPublish(b, c.number, number, exchange, key, content, frameSize)
	})
}

func (c *Channel) receive(f frame) error {
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
		c.record(Response{Number: arguments.uint64(), Multiple: arguments.uint8()&1 != 0})
	case basicNack:
		c.record(Response{Number: arguments.uint64(), Multiple: arguments.uint8()&1 != 0, Kind: Nack})
	case basicReturn:
		c.returning = &Response{Kind: Return, Code: arguments.uint16(), Text: arguments.shortString()}
	case channelClose:
		c.end(closeReason(arguments))
		c.conn.release(c.number)
		return c.conn.compose(func(b []byte) []byte { return appendMethod(b, c.number, channelCloseOk) })
	case channelCloseOk:
		c.conn.release(c.number)
	default:
		return fmt.Errorf("%w: type %d, method %d.%d on a confirm channel", errBadFrame, f.kind, method>>16, method&0xffff)
	}
	return nil
}

func (c *Channel) receiveHeader(payload []byte) error {
	if c.returning == nil {
		return errBadFrame
	}
	number, err := strconv.ParseUint(textHeader(payload, PublishHeader), 36, 64)
	if err == nil {
		c.returning.Number = number
	}
	r := reader(payload)
	r.next(4) // class and weight
	c.remaining = r.uint64()
	return c.receiveBody(0)
}

func (c *Channel) receiveBody(size uint64) error {
	if c.returning == nil || size > c.remaining {
		return errBadFrame
	}
	if c.remaining -= size; c.remaining == 0 {
		c.record(*c.returning)
		c.returning = nil
	}
	return nil
}

func (c *Channel) record(r Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.responses = append(c.responses, r)
	}
}

// TakeResponses returns the responses since the last call, and why the channel was closed, or nil.
// After a reason there are no more responses. The memory of scratch, an earlier result or nil, is
// used again.
func (c *Channel) TakeResponses(scratch []Response) ([]Response, *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	responses := c.responses
	c.responses = scratch[:0]
	return responses, c.closed
}

// If the channel was already closed, the first reason stays.
func (c *Channel) end(reason *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return
	}
	c.closed = reason
	if !c.opened {
		close(c.ready)
	}
}

// Close drops responses that arrive later. It does not wait for the broker's reply, which a stuck
// queue can delay without limit.
func (c *Channel) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if c.closed == nil {
		// If compose fails, the connection is closed already.
		_ = c.conn.compose(func(b []byte) []byte {
			return appendMethod(b, c.number, channelClose, 0, 200, 0, 0, 0, 0, 0)
		})
	}
}

func closeReason(arguments reader) *amqp.Error {
	code := int(arguments.uint16())
	reason := &amqp.Error{Code: code, Reason: arguments.shortString(), Server: true}
	switch code {
	case amqp.ContentTooLarge, amqp.NoRoute, amqp.NoConsumers,
		amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		reason.Recover = true // these codes close only the channel, not the connection
	}
	return reason
}
