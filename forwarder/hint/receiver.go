package hint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Receiver receives the hints of producers in other processes.
type Receiver struct {
	conn net.PacketConn
	hint func()

	once  sync.Once
	err   error
	ended chan struct{}
}

// Listen receives hints at address, such as ":7946", and calls hint for each of them: pass the
// method Hint of a forwarder.Forwarder. Use an address that only your own services can reach: a
// datagram contains none of your data, but may cause a read of the outbox. Listen fails if it
// cannot use the address.
func Listen(address string, hint func()) (*Receiver, error) {
	if hint == nil {
		return nil, errors.New("hint: the function is nil: pass the method Hint of a forwarder")
	}
	conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, fmt.Errorf("hint: %w", err)
	}
	r := &Receiver{conn: conn, hint: hint, ended: make(chan struct{})}
	go r.run()
	return r, nil
}

// Addr returns the address at which the Receiver listens.
func (r *Receiver) Addr() net.Addr { return r.conn.LocalAddr() }

// Close ends the Receiver. After it, the function passed to Listen is not called any more.
func (r *Receiver) Close() error {
	r.once.Do(func() {
		r.err = r.conn.Close()
		<-r.ended
	})
	return r.err
}

func (r *Receiver) run() {
	defer close(r.ended)
	buffer := make([]byte, len(datagram)+1) // one byte more, to recognize a longer datagram
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		n, _, err := r.conn.ReadFrom(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			<-ticker.C // an error, such as an ICMP error on some systems, must not cause a busy loop
		case string(buffer[:n]) == datagram:
			r.hint()
		}
	}
}
