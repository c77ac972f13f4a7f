package amqpwire

import (
	"cmp"
	"encoding/binary"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqp091's number of channels if neither side sets a limit.
const defaultChannels = 2047

// rewriteTune chooses the number of channels from the broker's offer, and
// halves the offer that amqp091 reads.
func (c *Conn) rewriteTune(offer reader) {
	if !c.confirmChannels || len(offer) < 2 {
		return
	}
	offered := binary.BigEndian.Uint16(offer)
	c.most = min(cmp.Or(offered, c.channelMax), cmp.Or(c.channelMax, offered)) // 0 is no limit
	c.most = cmp.Or(c.most, defaultChannels)
	binary.BigEndian.PutUint16(offer, max(c.most/2, 1))
}

// rewriteTuneOk replaces the number of channels in amqp091's reply to the offer,
// so that the broker reads the number of all channels.
func (c *Conn) rewriteTuneOk(f frame) {
	method, reply := f.method()
	if c.confirmChannels && f.channel == 0 && method == connectionTuneOk && len(reply) >= 2 {
		binary.BigEndian.PutUint16(reply, c.most)
	}
}

// OpenChannel opens a confirm channel. It does not wait for the broker; see
// [Channel.WaitOpen]. The Conn calls changed after it has received something for
// the channel; changed must not block. OpenChannel fails if the connection is
// closed or all channel numbers are in use.
func (c *Conn) OpenChannel(changed func()) (*Channel, error) {
	return c.open(c.most, changed)
}

func (c *Conn) open(most uint16, changed func()) (*Channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return nil, c.ended
	}
	number, err := c.freeNumber(most)
	if err != nil {
		return nil, err
	}
	channel := &Channel{conn: c, number: number, changed: changed, ready: make(chan struct{})}
	c.channels[number], c.last = channel, number
	return channel, c.compose(func(b []byte) []byte {
		b = appendMethod(b, number, channelOpen, 0)
		return appendMethod(b, number, confirmSelect, 0)
	})
}

// freeNumber returns the number that has been unused for longest: the broker may
// still respond to the channel that had it.
func (c *Conn) freeNumber(most uint16) (uint16, error) {
	least := most/2 + 1
	number := c.last
	for range most - least + 1 {
		if number--; number < least || number >= most {
			number = most
		}
		if c.channels[number] == nil && number > 1 {
			return number, nil
		}
	}
	return 0, fmt.Errorf("all AMQP channels are in use; the limit of the connection is %d; raise channel_max", most)
}

func (c *Conn) release(number uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.channels, number)
}

// IsClosing reports whether the connection is closed or about to be closed.
func (c *Conn) IsClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended != nil
}

// CloseReason returns the reason with which the broker closed the connection, or
// nil.
func (c *Conn) CloseReason() *amqp.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil || !c.ended.Server {
		return nil
	}
	return c.ended
}

// end closes all confirm channels.
func (c *Conn) end(reason *amqp.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.ended = reason
	for number, channel := range c.channels {
		delete(c.channels, number)
		channel.end(reason)
		channel.changed()
	}
}
