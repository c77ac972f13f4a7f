package forwarding

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and its server, knows where the messages of
// their protocol begin and end, and cuts the connection at a certain one.
type proxy struct {
	address string // where it listens
	read    func(r *bufio.Reader, first bool, toServer bool) ([]byte, error)

	mu     sync.Mutex
	server string
	watch  func(m relayed) action // nil passes everything
	cuts   int

	running sync.WaitGroup
}

// relayed is a message on its way.
type relayed struct {
	bytes    []byte
	toServer bool
	conn     net.Conn // to the client
}

// action is what the proxy does with a message.
type action int

const (
	pass      action = iota
	cutBefore        // it does not arrive, and nothing after it does
	cutAfter         // it arrives, and nothing after it does
)

// newProxy serves until the test ends. read returns the next message of either
// side; first is the first of it.
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

// cut has watch decide about every message from now on, until it has cut a
// connection; it may set another one, by p.watch.
func (p *proxy) cut(watch func(m relayed) action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

// lead has new connections go to another server. Those that are established
// stay where they are.
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

// made returns the number of cuts.
func (p *proxy) made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// amqpFrame reads what AMQP 0-9-1 sends: a header, once, and frames.
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

// amqpMethod returns class and method of a frame, or zeros.
func amqpMethod(frame []byte) (class, method uint16) {
	if len(frame) < 12 || frame[0] != 1 {
		return 0, 0
	}
	return binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:])
}

// postgresMessage reads what PostgreSQL sends: the first one of a client has no
// type.
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

// readAll appends n bytes to what was read before.
func readAll(r io.Reader, before []byte, n int) ([]byte, error) {
	all := make([]byte, len(before)+n)
	copy(all, before)
	_, err := io.ReadFull(r, all[len(before):])
	return all, err
}
