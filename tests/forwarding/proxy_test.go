package forwarding

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy relays between a client and its server. It knows the messages of their
// protocol, and can cut the connection at a given message.
type proxy struct {
	address string // the address of the proxy
	read    func(r *bufio.Reader, first bool, toServer bool) ([]byte, error)

	mu     sync.Mutex
	server string
	watch  func(m relayed) action // decides about each message; nil relays all of them
	cuts   int

	running sync.WaitGroup
}

// relayed is one message that the proxy has read.
type relayed struct {
	bytes    []byte
	toServer bool
	conn     net.Conn // connection to the client
}

// action says how the proxy treats a message.
type action int

const (
	pass      action = iota
	cutBefore        // this message and later ones do not arrive
	cutAfter         // this message arrives, later ones do not
)

// newProxy returns a proxy that runs until the test ends. The function read reads the
// next message of one side. Its parameter first is true for the first message of that
// side.
func newProxy(t *testing.T, server string, read func(r *bufio.Reader, first, toServer bool) ([]byte, error)) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{address: listener.Addr().String(), server: server, read: read}
	var connections sync.Map
	p.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.leads())
			if err != nil {
				_ = client.Close()
				continue
			}
			connections.Store(client, upstream)
			both := sync.OnceFunc(func() { _, _ = client.Close(), upstream.Close() })
			p.running.Go(func() { defer both(); p.relay(client, upstream, relayed{toServer: true, conn: client}) })
			p.running.Go(func() { defer both(); p.relay(upstream, client, relayed{conn: client}) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		connections.Range(func(client, upstream any) bool {
			for _, conn := range []any{client, upstream} {
				if c, ok := conn.(net.Conn); ok {
					_ = c.Close()
				}
			}
			return true
		})
		p.running.Wait()
	})
	return p
}

func (p *proxy) relay(from, to net.Conn, m relayed) {
	r := bufio.NewReaderSize(from, 1<<16)
	for first := true; ; first = false {
		var err error
		if m.bytes, err = p.read(r, first, m.toServer); err != nil {
			return
		}
		do := p.judge(m)
		if do == cutBefore {
			return
		}
		if _, err := to.Write(m.bytes); err != nil || do == cutAfter {
			return
		}
	}
}

func (p *proxy) judge(m relayed) action {
	p.mu.Lock()
	defer p.mu.Unlock()
	watch := p.watch
	if watch == nil {
		return pass
	}
	p.watch = nil
	do := watch(m)
	switch {
	case do != pass:
		p.cuts++
	case p.watch == nil:
		p.watch = watch
	}
	return do
}

// cut lets the function watch decide about every message until a connection was cut.
// This function may replace itself by setting p.watch.
func (p *proxy) cut(watch func(m relayed) action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

// lead makes the proxy connect new connections to another server. Existing connections
// stay.
func (p *proxy) lead(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

func (p *proxy) leads() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

// made returns how many connections were cut.
func (p *proxy) made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// amqpFrame reads a message of AMQP 0-9-1: the protocol header, or a frame.
func amqpFrame(r *bufio.Reader, first, toServer bool) ([]byte, error) {
	if first && toServer {
		return readAll(r, nil, 8)
	}
	head, err := readAll(r, nil, 7)
	if err != nil {
		return nil, err
	}
	return readAll(r, head, int(binary.BigEndian.Uint32(head[3:]))+1)
}

// amqpMethod returns the class and the method of a frame, or zeros if it contains no
// method.
func amqpMethod(frame []byte) (class, method uint16) {
	if len(frame) < 12 || frame[0] != 1 {
		return 0, 0
	}
	return binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:])
}

// postgresMessage reads a message of PostgreSQL's protocol. The first message of a
// client has no type byte.
func postgresMessage(r *bufio.Reader, first, toServer bool) ([]byte, error) {
	kind := 1
	if first && toServer {
		kind = 0
	}
	head, err := readAll(r, nil, kind+4)
	if err != nil {
		return nil, err
	}
	return readAll(r, head, int(binary.BigEndian.Uint32(head[kind:]))-4)
}

// readAll reads n bytes from r, and returns them in one slice behind the bytes that the
// caller has read earlier. The caller passes the earlier bytes in before.
func readAll(r io.Reader, before []byte, n int) ([]byte, error) {
	all := make([]byte, len(before)+n)
	copy(all, before)
	_, err := io.ReadFull(r, all[len(before):])
	return all, err
}
