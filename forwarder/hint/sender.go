package hint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// The receiver ignores datagrams with a different content.
const datagram = "once hint 1"

const (
	// pause is the shortest time between two datagrams to an address. It limits the reads that a
	// busy producer causes.
	pause = time.Millisecond

	// lookUpEvery is how long the addresses of a name are used. All instances of the forwarder must
	// get the hint, also new ones, because each reads different slots.
	lookUpEvery = 5 * time.Second

	lookUpTimeout = time.Second
)

// Config configures a [Sender]. The zero value is ready for use.
type Config struct {
	// Logger receives a line when the lookup of a name fails, and when it succeeds again. Defaults
	// to slog's default logger. Set watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter
}

// Sender sends hints to forwarders in other processes. It is safe for concurrent use.
type Sender struct {
	hosts  []*host
	conn   net.PacketConn
	logger watermill.LoggerAdapter

	wanted chan struct{}
	ctx    context.Context // ends when Close is called
	cancel context.CancelFunc
	ended  chan struct{}
	once   sync.Once
	err    error
}

type host struct {
	name string
	port uint16

	found   []netip.AddrPort
	lookUp  time.Time // when to look up the name again; zero for an IP address
	fixed   bool      // whether the name is an IP address
	failing bool
}

// NewSender returns a Sender that sends hints to the forwarders at addresses. Each address is a
// host with a port, such as "forwarder.shop.svc:7946". If a name has several IP addresses, such as
// a headless service in Kubernetes, each gets every hint. Names are not looked up yet, so the
// forwarders need not run. An invalid address is an error.
func NewSender(addresses []string, config Config) (*Sender, error) {
	if config.Logger == nil {
		config.Logger = watermill.NewSlogLogger(nil)
	}
	s := &Sender{logger: config.Logger, wanted: make(chan struct{}, 1), ended: make(chan struct{})}
	var errs []error
	if len(addresses) == 0 {
		errs = append(errs, errors.New("hint: there are no addresses: name the host and port of each forwarder"))
	}
	for _, address := range addresses {
		h, err := newHost(address)
		errs = append(errs, err)
		s.hosts = append(s.hosts, h)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	conn, err := (&net.ListenConfig{}).ListenPacket(s.ctx, "udp", ":0")
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("hint: %w", err)
	}
	s.conn = conn
	go s.run()
	return s, nil
}

func newHost(address string) (*host, error) {
	name, service, err := net.SplitHostPort(address)
	if err == nil && name == "" {
		err = errors.New("the host is missing")
	}
	port := 0
	if err == nil {
		port, err = net.DefaultResolver.LookupPort(context.Background(), "udp", service)
	}
	if err != nil {
		return nil, fmt.Errorf("hint: %q is no address of a forwarder, such as forwarder:7946: %w", address, err)
	}
	h := &host{name: name, port: uint16(port)}
	if ip, err := netip.ParseAddr(name); err == nil {
		h.fixed, h.found = true, []netip.AddrPort{netip.AddrPortFrom(ip, h.port)}
	}
	return h, nil
}

// Hint tells the forwarders that a transaction was committed. It never blocks, and returns no
// error, because a lost hint only delays a message. Pass it to outbox.InTx, or call it after a
// commit. Several hints within a millisecond are sent as one.
func (s *Sender) Hint() {
	select {
	case s.wanted <- struct{}{}:
	default: // the next datagram is not sent yet
	}
}

// Close ends the Sender. A hint that was not sent yet may be lost.
func (s *Sender) Close() error {
	s.once.Do(func() {
		s.cancel()
		s.err = s.conn.Close()
		<-s.ended
	})
	return s.err
}

func (s *Sender) run() {
	defer close(s.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.wanted:
		case <-s.ctx.Done():
			return
		}
		for _, h := range s.hosts {
			s.find(h)
			for _, to := range h.found {
				// An error is like a lost datagram.
				_, _ = s.conn.WriteTo([]byte(datagram), net.UDPAddrFromAddrPort(to))
			}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// If the lookup fails, find keeps the old addresses.
func (s *Sender) find(h *host) {
	now := time.Now()
	if h.fixed || now.Before(h.lookUp) {
		return
	}
	h.lookUp = now.Add(lookUpEvery)
	ctx, cancel := context.WithTimeout(s.ctx, lookUpTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.name)
	fields := watermill.LogFields{"host": h.name}
	switch {
	case s.ctx.Err() != nil:
	case err != nil && !h.failing:
		s.logger.Error("Host of a forwarder cannot be found, it gets no hints", err, fields)
	case err == nil && h.failing:
		s.logger.Info("Host of a forwarder is found again", fields)
	}
	h.failing = err != nil
	if err != nil {
		return
	}
	h.found = h.found[:0]
	for _, ip := range ips {
		if to := netip.AddrPortFrom(ip.Unmap(), h.port); !slices.Contains(h.found, to) {
			h.found = append(h.found, to)
		}
	}
}
