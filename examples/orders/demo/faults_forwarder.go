package demo

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/forwarder"
)

// stops is the number of forwarders that are stopped in the middle of a batch, one
// after the other. The next forwarder then runs until the end.
const stops = 3

// restarting is a forwarder that stops before all confirms have arrived. Another
// forwarder then replaces it. If the first forwarder cannot release its lease, the
// second one waits until the lease has expired.
type restarting struct {
	faults    *Faults
	pool      *sql.DB
	publisher message.Publisher
	config    forwarder.Config

	running  chan struct{}
	firstRun sync.Once

	mu      sync.Mutex
	current *forwarder.Forwarder
	closed  bool
}

// forwarder replaces forwarder.New in the service.
func (f *Faults) forwarder(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (service.Forwarder, error) {
	m := &restarting{faults: f, pool: pool, publisher: repeating(publisher, f), config: config, running: make(chan struct{})}
	var err error
	m.current, err = forwarder.New(pool, m.publisher, config) // Hint and Close may be called before Run, and need a forwarder
	return m, err
}

// Run implements service.Forwarder.
func (m *restarting) Run(ctx context.Context) error {
	for n := 1; ; n++ {
		last, err := m.runOne(ctx, n)
		if last || err != nil {
			return err
		}
	}
}

// runOne runs the nth forwarder, and reports whether it was the last one.
func (m *restarting) runOne(ctx context.Context, n int) (last bool, err error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	publisher, config := m.publisher, m.config
	if n <= stops {
		after := max(1, m.faults.orders/10)
		publisher = counting(publisher, after, func() {
			m.faults.injected.ForwarderKills.Add(1)
			kill()
		})
		config.CloseTimeout = time.Millisecond // too short to wait for the confirms
	}
	fwd, err := forwarder.New(m.pool, publisher, config)
	if err != nil {
		return true, err
	}
	if !m.replace(fwd) {
		return true, nil
	}
	go func() {
		select {
		case <-fwd.Running():
			m.firstRun.Do(func() { close(m.running) })
		case <-ctx.Done():
		}
	}()
	err = fwd.Run(ctx)
	return n > stops || m.isClosed(), err
}

// replace makes fwd the current forwarder, unless Close was called.
func (m *restarting) replace(fwd *forwarder.Forwarder) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = fwd
	return !m.closed
}

func (m *restarting) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// Running implements service.Forwarder.
func (m *restarting) Running() <-chan struct{} { return m.running }

// Hint implements service.Forwarder.
func (m *restarting) Hint() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current.Hint()
}

// Close implements service.Forwarder.
func (m *restarting) Close() error {
	m.mu.Lock()
	m.closed = true
	current := m.current
	m.mu.Unlock()
	return current.Close()
}
