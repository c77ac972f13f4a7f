package rabbit

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// mux shares a connection between amqp091, which sets it up, keeps it alive and
// has channels for declaring and consuming, and channels for publishing, which
// are ours. amqp091 knows nothing of these: their frames go between those that
// it writes, and are taken out of what it reads. They have the upper half of the
// numbers, of which amqp091 is told nothing: it goes through all that it knows
// of, and the broker closes a connection on which a number is opened twice.
//
// Why publishing is not amqp091's: docs/decisions/0009-publishing-frames.md.
type mux struct {
	*socket

	// Write's. amqp091 has a lock around it.
	partial []byte

	// Read's. amqp091 has one goroutine for it.
	in      []byte // not yet looked at
	out     []byte // for amqp091
	rest    []byte // of out: not yet handed over
	handed  time.Time
	changed []*channel // by what was read last

	publishes bool   // else all numbers are amqp091's
	wanted    uint16 // how many channels the configuration asks for, or 0
	most      uint16 // how many there may be; set while connecting

	mu       sync.Mutex
	channels map[uint16]*channel
	last     uint16      // number of the channel that was opened last
	ended    *amqp.Error // why there are no more channels
}

const readBuffer = 64 << 10

func newMux(s *socket) *mux {
	return &mux{socket: s, in: make([]byte, 0, readBuffer), channels: make(map[uint16]*channel)}
}

// Write takes all of b. What is not yet a whole frame stays here, so that the
// frames of others can go in front of it.
func (m *mux) Write(b []byte) (int, error) {
	m.partial = append(m.partial, b...)
	whole := 0
	for whole < len(m.partial) {
		n := frameLength(m.partial[whole:])
		if m.partial[whole] == protocolHeader[0] {
			n = len(protocolHeader)
		}
		if n == 0 || n > len(m.partial)-whole {
			break
		}
		m.tuned(frameOf(m.partial[whole : whole+n]))
		whole += n
	}
	if whole > 0 {
		if _, err := m.socket.Write(m.partial[:whole]); err != nil {
			return 0, err
		}
		m.partial = slices.Delete(m.partial, 0, whole)
	}
	return len(b), nil
}

// protocolHeader opens a connection, and is the broker's answer if it speaks no
// such protocol. It is not a frame.
const protocolHeader = "AMQP\x00\x00\x09\x01"

// How long amqp091 may go without anything to read while the broker sends us
// something: it gives up a connection that is silent for one and a half
// heartbeats, of a second at least.
const longestSilence = 300 * time.Millisecond

// Read returns what is amqp091's of what comes in. Once it has returned an
// error, all channels are closed.
func (m *mux) Read(b []byte) (int, error) {
	for len(m.rest) == 0 {
		if len(m.in) == cap(m.in) {
			m.in = slices.Grow(m.in, 2*cap(m.in))
		}
		n, err := m.Conn.Read(m.in[len(m.in):cap(m.in)])
		m.in = m.in[:len(m.in)+n]
		if err == nil || n > 0 {
			err = m.split()
		}
		if err != nil {
			m.end(&amqp.Error{Code: amqp.FrameError, Reason: err.Error()})
			return 0, err
		}
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// split gives every whole frame that has come in to whom it belongs to.
func (m *mux) split() error {
	var (
		err   error
		taken int
	)
	m.out = m.out[:0]
	for err == nil && taken < len(m.in) {
		left := m.in[taken:]
		n := frameLength(left)
		if left[0] == protocolHeader[0] {
			n = len(left)
		}
		if n == 0 || n > len(left) {
			break
		}
		taken += n
		var ours bool
		if ours, err = m.deliver(left[:n]); !ours {
			m.out = appendReadable(m.out, left[:n])
		}
	}
	m.in = slices.Delete(m.in, 0, taken)

	for _, c := range m.changed {
		c.changed()
	}
	m.changed = m.changed[:0]
	switch now := time.Now(); {
	case len(m.out) > 0:
		m.handed = now
	case taken > 0 && now.Sub(m.handed) > longestSilence:
		m.out = append(m.out, heartbeat[:]...)
		m.handed = now
	}
	m.rest = m.out
	return err
}

var errBadFrame = errors.New("the broker has sent something that is not a frame")

func (m *mux) deliver(b []byte) (ours bool, err error) {
	if b[0] == protocolHeader[0] {
		return false, nil
	}
	f := frameOf(b)
	if f.channel == 0 {
		switch method, arguments := f.method(); method {
		case connectionTune:
			m.tune(arguments)
		case connectionClose:
			m.end(closeReason(arguments))
		}
		return false, nil
	}
	m.mu.Lock()
	c := m.channels[f.channel]
	m.mu.Unlock()
	if c == nil {
		return false, nil
	}
	if b[len(b)-1] != frameEnd {
		return true, errBadFrame
	}
	if len(m.changed) == 0 || m.changed[len(m.changed)-1] != c {
		m.changed = append(m.changed, c)
	}
	return true, c.receive(f)
}

// tune agrees with the broker's offer on a number of channels, and has amqp091
// read an offer of half as many.
func (m *mux) tune(offer wire) {
	if !m.publishes || len(offer) < 2 {
		return
	}
	offered := binary.BigEndian.Uint16(offer)
	m.most = min(cmp.Or(offered, m.wanted), cmp.Or(m.wanted, offered)) // 0 is no limit
	m.most = cmp.Or(m.most, defaultChannels)
	binary.BigEndian.PutUint16(offer, max(m.most/2, 1))
}

// As many as amqp091 has where nobody sets a limit.
const defaultChannels = 2047

// tuned has the broker read what was agreed on, if f is amqp091's answer.
func (m *mux) tuned(f frame) {
	method, answer := f.method()
	if m.publishes && f.channel == 0 && method == connectionTuneOk && len(answer) >= 2 {
		binary.BigEndian.PutUint16(answer, m.most)
	}
}

// open opens a channel in confirm mode, with a number of up to most. It does
// not wait for the broker, but for its channel.await does. changed is called
// after something has come in for the channel, and must not block.
func (m *mux) open(most uint16, changed func()) (*channel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return nil, m.ended
	}
	number, err := m.free(most)
	if err != nil {
		return nil, err
	}
	c := &channel{mux: m, number: number, changed: changed, ready: make(chan struct{})}
	m.channels[number], m.last = c, number
	return c, m.compose(func(b []byte) []byte {
		b = appendMethod(b, number, channelOpen, 0)
		return appendMethod(b, number, confirmSelect, 0)
	})
}

// free returns a number that is not taken, and was not for as long as possible: the
// broker may still answer to a channel that had it.
func (m *mux) free(most uint16) (uint16, error) {
	least := most/2 + 1
	number := m.last
	for range most - least + 1 {
		if number--; number < least || number >= most {
			number = most
		}
		if m.channels[number] == nil && number > 1 {
			return number, nil
		}
	}
	return 0, fmt.Errorf("all channels are taken; the limit of the connection is %d", most)
}

// release gives the number of a channel back.
func (m *mux) release(number uint16) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.channels, number)
}

// isEnded reports whether the connection is closed, or going to be.
func (m *mux) isEnded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended != nil
}

// refusal is what the broker closed the connection with, if it did.
func (m *mux) refusal() *amqp.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended == nil || !m.ended.Server {
		return nil
	}
	return m.ended
}

// end closes all channels: the connection is closed, or going to be.
func (m *mux) end(reason *amqp.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return
	}
	m.ended = reason
	for number, c := range m.channels {
		delete(m.channels, number)
		c.end(reason)
		c.changed()
	}
}
