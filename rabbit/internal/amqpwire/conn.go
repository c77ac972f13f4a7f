package amqpwire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Conn is the net.Conn of an amqp091 connection. It inserts the frames of the confirm channels
// between those that amqp091 writes, and removes them from the bytes that it reads.
//
// The confirm channels use the upper half of the channel numbers, and amqp091 the lower one:
// otherwise it would use every number, and the broker closes the connection if one is opened twice.
type Conn struct {
	*socket

	// Only Write uses this field. amqp091 holds a lock meanwhile.
	incomplete []byte // beginning of a frame that amqp091 is writing

	// Only Read uses the fields from here on. amqp091 calls it from one goroutine.
	received []byte    // bytes that are not split into frames yet
	own      []byte    // frames for amqp091
	unread   []byte    // the end of the bytes in the field own, which amqp091 has not read yet
	lastRead time.Time // time at which amqp091 last read something
	changed  []*Channel

	confirmChannels bool
	channelMax      uint16
	highest         uint16 // largest channel number; set during the handshake

	mu       sync.Mutex
	channels map[uint16]*Channel
	last     uint16      // number of the channel that was opened most recently
	ended    *amqp.Error // why no more channels can be opened, or nil
}

// Config configures a Conn.
type Config struct {
	// WriteTimeout is how long a write may make no progress before the connection is closed.
	WriteTimeout time.Duration

	// ConfirmChannels reserves half of the channel numbers, which OpenChannel needs.
	ConfirmChannels bool

	// ChannelMax is the configured number of channels, or 0 for the broker's limit.
	ChannelMax uint16
}

const readBuffer = 64 << 10

// NewConn returns a Conn that uses conn, before AMQP's handshake, and closes it.
func NewConn(conn net.Conn, config Config) *Conn {
	c := newConn(newSocket(conn, config.WriteTimeout))
	c.confirmChannels, c.channelMax = config.ConfirmChannels, config.ChannelMax
	return c
}

func newConn(s *socket) *Conn {
	return &Conn{socket: s, received: make([]byte, 0, readBuffer), channels: make(map[uint16]*Channel)}
}

// Write buffers all of b, or returns an error. It holds an incomplete frame back until the rest
// arrives, because frames of confirm channels may only be written between complete ones.
func (c *Conn) Write(b []byte) (int, error) {
	c.incomplete = append(c.incomplete, b...)
	whole := 0
	for whole < len(c.incomplete) {
		n := frameLength(c.incomplete[whole:])
		if c.incomplete[whole] == protocolHeader[0] {
			n = len(protocolHeader)
		}
		if n == 0 || n > len(c.incomplete)-whole {
			break
		}
		c.rewriteTuneOk(parseFrame(c.incomplete[whole : whole+n]))
		whole += n
	}
	if whole > 0 {
		if _, err := c.socket.Write(c.incomplete[:whole]); err != nil {
			return 0, err
		}
		c.incomplete = slices.Delete(c.incomplete, 0, whole)
	}
	return len(b), nil
}

// protocolHeader is what a client sends first, and no frame. A broker without AMQP 0-9-1 replies
// with a protocol header, too.
const protocolHeader = "AMQP\x00\x00\x09\x01"

// longestSilence is the time after which Read inserts a heartbeat for amqp091, which closes a
// connection if it reads nothing for one and a half heartbeat intervals, at least one second each.
// While the broker sends confirms, which amqp091 does not see, it sends no heartbeats.
const longestSilence = 300 * time.Millisecond

// Read returns bytes for amqp091. If it returns an error, it has closed all confirm channels.
func (c *Conn) Read(b []byte) (int, error) {
	for len(c.unread) == 0 {
		if len(c.received) == cap(c.received) {
			c.received = slices.Grow(c.received, cap(c.received))
		}
		n, err := c.Conn.Read(c.received[len(c.received):cap(c.received)])
		c.received = c.received[:len(c.received)+n]
		if err == nil || n > 0 {
			err = c.split()
		}
		if err != nil {
			c.end(&amqp.Error{Code: amqp.FrameError, Reason: err.Error()})
			return 0, err
		}
	}
	n := copy(b, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// split passes the complete frames of confirm channels to these, and keeps the others for amqp091.
func (c *Conn) split() error {
	var (
		err  error
		done int
	)
	c.own = c.own[:0]
	for err == nil && done < len(c.received) {
		rest := c.received[done:]
		n := frameLength(rest)
		if rest[0] == protocolHeader[0] {
			n = len(rest)
		}
		if n == 0 || n > len(rest) {
			break
		}
		done += n
		var ours bool
		if ours, err = c.dispatch(rest[:n]); !ours {
			c.own = appendWidened(c.own, rest[:n])
		}
	}
	c.received = slices.Delete(c.received, 0, done)

	for _, channel := range c.changed {
		channel.notify()
	}
	c.changed = c.changed[:0]
	switch now := time.Now(); {
	case len(c.own) > 0:
		c.lastRead = now
	case done > 0 && now.Sub(c.lastRead) > longestSilence:
		c.own = append(c.own, heartbeat[:]...)
		c.lastRead = now
	}
	c.unread = c.own
	return err
}

var errBadFrame = errors.New("the broker has sent an unexpected frame")

// dispatch returns false if the frame is for amqp091.
func (c *Conn) dispatch(b []byte) (ours bool, err error) {
	if b[0] == protocolHeader[0] {
		return false, nil
	}
	f := parseFrame(b)
	if f.channel == 0 {
		switch method, arguments := f.method(); method {
		case connectionTune:
			c.rewriteTune(arguments)
		case connectionClose:
			c.end(closeReason(arguments))
		}
		return false, nil
	}
	c.mu.Lock()
	channel := c.channels[f.channel]
	c.mu.Unlock()
	if channel == nil {
		return false, nil
	}
	if b[len(b)-1] != frameEnd {
		return true, errBadFrame
	}
	if len(c.changed) == 0 || c.changed[len(c.changed)-1] != channel {
		c.changed = append(c.changed, channel)
	}
	return true, channel.receive(f)
}

// defaultChannels is what amqp091 uses if neither the client nor the broker sets a limit.
const defaultChannels = 2047

// rewriteTune decides how many of the offered channels to use, and offers half of them to amqp091.
func (c *Conn) rewriteTune(offer reader) {
	if !c.confirmChannels || len(offer) < 2 {
		return
	}
	offered := binary.BigEndian.Uint16(offer)
	c.highest = min(cmp.Or(offered, c.channelMax), cmp.Or(c.channelMax, offered)) // 0 means no limit
	c.highest = cmp.Or(c.highest, defaultChannels)
	binary.BigEndian.PutUint16(offer, max(c.highest/2, 1))
}

// rewriteTuneOk replies with the number of all channels, in place of amqp091's.
func (c *Conn) rewriteTuneOk(f frame) {
	method, reply := f.method()
	if c.confirmChannels && f.channel == 0 && method == connectionTuneOk && len(reply) >= 2 {
		binary.BigEndian.PutUint16(reply, c.highest)
	}
}

// OpenChannel opens a confirm channel without waiting for the broker, see [Channel.WaitOpen].
// notify is called each time something was received for it, and must not block. OpenChannel fails
// if the connection is closed, or all channel numbers are in use.
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

// A number is not used again soon: responses to its last channel may still arrive.
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

// CloseReason returns why the broker closed the connection, or nil.
func (c *Conn) CloseReason() *amqp.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil || !c.ended.Server {
		return nil
	}
	return c.ended
}

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
