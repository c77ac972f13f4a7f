package main

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// proxy relays between the processes and a server. It knows the messages of their
// protocol, counts them, and simulates faults of the network.
type proxy struct {
	address  string
	server   string
	protocol protocol
	listener net.Listener

	mu      sync.Mutex
	mode    mode
	changed chan struct{} // closed when mode changes
	links   map[*link]struct{}
	watch   func(m relayed) action // decides about each message; nil relays all of them
	counts  map[string]int64

	running sync.WaitGroup
}

// mode says how a proxy treats all connections.
type mode int

const (
	passing  mode = iota
	slowing       // messages are delayed
	silent        // nothing is relayed, and the connections stay open
	halfOpen      // the connections to the server are closed, but the connections to the clients stay open
	refusing      // new connections are closed immediately
)

// link is a connection to a client, together with its connection to the server. The field
// server is nil if the proxy did not connect to the server, because of its mode.
type link struct {
	client, server *net.TCPConn
}

func (l *link) close() {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

// reset closes both connections, so that both sides see a reset and not a normal end.
func (l *link) reset() {
	l.lose()
	l.close()
}

func (l *link) lose() {
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		if conn != nil {
			_ = conn.SetLinger(0)
		}
	}
}

// relayed is one message that the proxy has read.
type relayed struct {
	bytes    []byte
	toServer bool
	link     *link
}

// action says how the proxy treats a message.
type action int

const (
	pass      action = iota
	cutBefore        // this message and later ones do not arrive
	cutAfter         // this message arrives, later ones do not
)

func newProxy(server string, protocol protocol) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{
		address: listener.Addr().String(), server: server, protocol: protocol, listener: listener,
		changed: make(chan struct{}), links: make(map[*link]struct{}), counts: make(map[string]int64),
	}
	p.running.Go(p.serve)
	return p, nil
}

func (p *proxy) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(conn.(*net.TCPConn)) })
	}
}

func (p *proxy) connect(client *net.TCPConn) {
	l := &link{client: client}
	mode, _ := p.now()
	if mode == refusing {
		p.count("refused", 1)
		_ = client.Close()
		return
	}
	if mode != silent && mode != halfOpen {
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
		if err != nil {
			p.count("unreachable", 1)
			_ = client.Close()
			return
		}
		l.server = server.(*net.TCPConn)
	}
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	p.count("connected", 1)
	var both sync.WaitGroup
	both.Go(func() { p.relay(l, true) })
	if l.server != nil {
		both.Go(func() { p.relay(l, false) })
	}
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// relay relays the messages of one direction until an error or a cut, and then closes
// both connections.
func (p *proxy) relay(l *link, toServer bool) {
	defer l.close()
	from, to := l.client, l.server
	if !toServer {
		from, to = l.server, l.client
	}
	r := bufio.NewReaderSize(from, 1<<16)
	for first := true; ; first = false {
		message, err := p.protocol.read(r, first, toServer)
		if err != nil {
			p.linger(toServer)
			return
		}
		if name := p.protocol.name(message, toServer); name != "" {
			p.count(name, 1)
		}
		do := p.judge(relayed{bytes: message, toServer: toServer, link: l})
		if do == cutBefore {
			return
		}
		if p.held(len(message)) || to == nil {
			continue
		}
		if _, err := to.Write(message); err != nil {
			if p.linger(toServer) {
				continue
			}
			return
		}
		if do == cutAfter {
			return
		}
	}
}

// held delays or drops a message as the mode requires. It reports whether the message
// was dropped.
func (p *proxy) held(size int) (gone bool) {
	mode, changed := p.now()
	switch mode {
	case passing, refusing:
	case slowing:
		p.count("delayed", 1)
		select {
		case <-time.After(2 * time.Millisecond):
		case <-changed:
		}
	case silent, halfOpen:
		p.count("swallowed", int64(size))
		return true
	}
	return false
}

// linger is called after a connection has ended. It returns true if the caller must
// continue to read the client's data and drop it. In the mode halfOpen, this keeps the
// client's connection open. For the other direction, linger waits until this mode ends.
func (p *proxy) linger(toServer bool) (more bool) {
	for {
		mode, changed := p.now()
		if mode != halfOpen {
			return false
		}
		if toServer {
			return true
		}
		<-changed
	}
}

func (p *proxy) judge(m relayed) action {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch == nil {
		return pass
	}
	do := p.watch(m)
	if do != pass {
		p.watch = nil
		p.counts["cut"]++
	}
	return do
}

// cut makes the proxy cut one connection. From now on, the proxy calls the function
// watch for each message that it relays, and watch decides whether the connection is
// cut there. After the first cut, watch is not called any more. If watch is nil, no
// connection is cut.
func (p *proxy) cut(watch func(m relayed) action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

func (p *proxy) now() (mode, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.changed
}

// set changes the mode. In the modes silent and halfOpen, connections lose data and
// cannot recover, so set resets them when such a mode ends. When the mode halfOpen
// begins, set closes the connections to the server.
func (p *proxy) set(m mode) {
	p.mu.Lock()
	old := p.mode
	var links []*link
	for l := range p.links {
		links = append(links, l)
		if m != halfOpen && (old == silent || old == halfOpen) {
			l.lose() // before the link's goroutines see the new mode and close it
		}
	}
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	for _, l := range links {
		switch {
		case m == halfOpen && l.server != nil:
			_ = l.server.Close()
			p.count("half-open", 1)
		case old == silent || old == halfOpen:
			l.reset()
		}
	}
}

func (p *proxy) reset() {
	p.mu.Lock()
	var links []*link
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.reset()
	}
	p.count("reset", int64(len(links)))
}

func (p *proxy) count(name string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[name] += n
}

func (p *proxy) counted(name string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[name]
}

func (p *proxy) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close closes the listener and all connections, and waits for the proxy's goroutines.
func (p *proxy) Close() error {
	err := p.listener.Close()
	p.set(refusing)
	p.reset()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
