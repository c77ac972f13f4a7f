package testenv

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy relays TCP connections to a server until a test calls Break.
type Proxy struct {
	server string // host:port

	mu          sync.Mutex
	address     string // host:port
	listener    net.Listener
	broken      bool
	connections []net.Conn
	copying     sync.WaitGroup
}

// NewProxy returns a proxy for the server that a URL names. It also returns the URL
// that reaches the same server through the proxy.
func NewProxy(t testing.TB, server string) (proxy *Proxy, through string) {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil || address.Port() == "" {
		t.Fatal("the server's URL needs a host and a port")
	}
	p := &Proxy{server: address.Host, address: "127.0.0.1:0"}
	p.Restore(t)
	t.Cleanup(p.Break)
	address.Host = p.address
	return p, address.String()
}

// Break closes all connections and refuses new ones.
func (p *Proxy) Break() {
	p.mu.Lock()
	p.broken = true
	_ = p.listener.Close()
	for _, connection := range p.connections {
		_ = connection.Close()
	}
	p.connections = nil
	p.mu.Unlock()
	p.copying.Wait()
}

// Restore accepts connections again.
func (p *Proxy) Restore(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.listener, p.address, p.broken = listener, listener.Addr().String(), false
	p.copying.Go(func() { p.accept(listener) })
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // Break has closed the listener
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.connections = append(p.connections, client, server)
		if p.broken { // Break was called after Accept had returned
			_, _ = client.Close(), server.Close()
		}
		p.mu.Unlock()
		p.copying.Go(func() { copyUntilClosed(client, server) })
		p.copying.Go(func() { copyUntilClosed(server, client) })
	}
}

func copyUntilClosed(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}
