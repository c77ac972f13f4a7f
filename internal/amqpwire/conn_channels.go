package amqpwire

import (
	"cmp"
	"encoding/binary"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// defaultChannels is the number of channels that amqp091 uses if neither the client nor
// the broker sets a limit.
const defaultChannels = 2047

// rewriteTune reads the number of channels that the broker offers, and decides how many
// to use. It writes half of this number into the offer that amqp091 reads, because the
// other half is for the confirm channels.
func (c *Conn) rewriteTune(offer reader) {
	if !c.confirmChannels || len(offer) < 2 {
		return
	}
	offered := binary.BigEndian.Uint16(offer)
	c.highest = min(cmp.Or(offered, c.channelMax), cmp.Or(c.channelMax, offered)) // 0 means no limit
	c.highest = cmp.Or(c.highest, defaultChannels)
	binary.BigEndian.PutUint16(offer, max(c.highest/2, 1))
}

// rewriteTuneOk changes amqp091's reply to the broker's offer. amqp091 replies with the
// number of its own channels. rewriteTuneOk replaces this number with the number of all
// channels, including the confirm channels.
func (c *Conn) rewriteTuneOk(f frame) {
	method, reply := f.method()
	if c.confirmChannels && f.channel == 0 && method == connectionTuneOk && len(reply) >= 2 {
		binary.BigEndian.PutUint16(reply, c.highest)
	}
}

// OpenChannel opens a confirm channel. It does not wait for the broker; see
// [Channel.WaitOpen]. The Conn calls the function notify each time it has received
// something for the channel. The function must not block. OpenChannel fails if the
// connection is closed, or if all channel numbers are in use.
func (c *Conn) OpenChannel(notify func()) (*Channel, error) {
	return c.open(c.highest, notify)
}

func (c *Conn) open(highest uint16, notify func()) (*Channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return nil, c.ended
	}
	number, err := c.freeNumber(highest)
	if err != nil {
		return nil, err
	}
	channel := &Channel{conn: c, number: number, notify: notify, ready: make(chan struct{})}
	c.channels[number], c.last = channel, number
	return channel, c.compose(func(b []byte) []byte {
		b = appendMethod(b, number, channelOpen, 0)
		return appendMethod(b, number, confirmSelect, 0)
	})
}

// freeNumber returns a free channel number. It uses the numbers in turn, so that a
// number is not used again immediately: the broker may still send responses to a
// channel that was closed recently.
func (c *Conn) freeNumber(highest uint16) (uint16, error) {
	least := highest/2 + 1
	number := c.last
	for range highest - least + 1 {
		if number--; number < least || number >= highest {
			number = highest
		}
		if c.channels[number] == nil && number > 1 {
			return number, nil
		}
	}
	return 0, fmt.Errorf("all AMQP channels are in use; the limit of the connection is %d; raise channel_max", highest)
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

// CloseReason returns the reason why the broker closed the connection, or nil if the
// broker has not closed it.
func (c *Conn) CloseReason() *amqp.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil || !c.ended.Server {
		return nil
	}
	return c.ended
}

// end closes all confirm channels with the given reason.
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
		channel.notify()
	}
}
