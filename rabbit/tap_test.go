package rabbit_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// tap relays connections to the broker, and counts some AMQP methods.
type tap struct {
	uri    string // URL of the broker
	tapped string // URL of the tap

	mu       sync.Mutex
	acked    int
	nacked   int
	rejected int
	closed   []string // reasons for which the broker has closed channels
	closes   int      // number of channels that clients have closed

	atClose chan struct{} // becomes the value of silence when a client closes a channel; may be nil
	silence chan struct{} // while this channel is open, no frame from the broker reaches the client
}

func newTap(t *testing.T, uri string) *tap {
	t.Helper()
	target, err := url.Parse(uri)
	kit.OK(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	w := &tap{uri: uri}
	broker := target.Host
	accept(t, listener, func(client net.Conn) { w.relay(client, broker) })
	target.Host = listener.Addr().String()
	w.tapped = target.String()
	return w
}

func (w *tap) relay(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	var back sync.WaitGroup
	back.Go(func() {
		defer client.Close()
		w.frames(audible{client, w}, bufio.NewReader(server), func(method uint32, rest []byte) {
			if method == 20<<16|40 && len(rest) > 3 { // channel.close
				w.closed = append(w.closed, string(rest[3:]))
			}
		})
	})
	defer back.Wait()
	defer server.Close()
	r := bufio.NewReader(client)
	if _, err := io.CopyN(server, r, 8); err != nil { // the protocol header
		return
	}
	w.frames(server, r, func(method uint32, _ []byte) {
		switch method {
		case 20<<16 | 40: // channel.close
			w.closes++
			w.silence = w.atClose
		case 60<<16 | 80: // basic.ack
			w.acked++
		case 60<<16 | 90: // basic.reject
			w.rejected++
		case 60<<16 | 120: // basic.nack
			w.nacked++
		}
	})
}

// silentAtClose changes what the tap does after a client has closed a channel: it holds
// back all frames of the broker until the test calls end.
func (w *tap) silentAtClose() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	silence := make(chan struct{})
	w.atClose = silence
	return sync.OnceFunc(func() { close(silence) })
}

// audible writes to a client. While the tap is silent, it waits.
type audible struct {
	io.Writer

	tap *tap
}

func (a audible) Write(frame []byte) (int, error) {
	a.tap.mu.Lock()
	silence := a.tap.silence
	a.tap.mu.Unlock()
	if silence != nil {
		<-silence
	}
	return a.Writer.Write(frame)
}

// frames relays frames until one side ends the connection.
func (w *tap) frames(to io.Writer, from *bufio.Reader, note func(method uint32, rest []byte)) {
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		frame := slices.Concat(head, make([]byte, binary.BigEndian.Uint32(head[3:])+1))
		if _, err := io.ReadFull(from, frame[7:]); err != nil {
			return
		}
		if frame[0] == 1 && len(frame) >= 12 {
			w.mu.Lock()
			note(binary.BigEndian.Uint32(frame[7:]), frame[11:len(frame)-1])
			w.mu.Unlock()
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

// acks returns the number of acks that the clients have sent.
func (w *tap) acks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked
}

// closesOfChannels returns the number of channels that the clients have closed.
func (w *tap) closesOfChannels() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closes
}

// givenBack returns the numbers of nacks and rejects that the clients have sent.
func (w *tap) givenBack() (nacks, rejects int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nacked, w.rejected
}

// closedByBroker returns the reasons for which the broker has closed channels.
func (w *tap) closedByBroker() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.closed...)
}
