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

// lives is how many forwarders of a run are stopped in mid-batch, one after the
// other, before one lives on.
const lives = 3

// mortal is a forwarder that dies with messages in flight, and is succeeded by
// another, which has to wait for the lease if the dead one could not give it
// back.
type mortal struct {
	faults    *Faults
	pool      *sql.DB
	publisher message.Publisher
	config    forwarder.Config

	running   chan struct{}
	runsFirst sync.Once

	mu      sync.Mutex
	current *forwarder.Forwarder
	closed  bool
}

// forwarder stands in for forwarder.New.
func (f *Faults) forwarder(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (service.Forwarder, error) {
	m := &mortal{faults: f, pool: pool, publisher: repeating(publisher, f), config: config, running: make(chan struct{})}
	var err error
	m.current, err = forwarder.New(pool, m.publisher, config) // in case the first is closed before it runs
	return m, err
}

// Run implements service.Forwarder.
func (m *mortal) Run(ctx context.Context) error {
	for life := 1; ; life++ {
		over, err := m.live(ctx, life)
		if over || err != nil {
			return err
		}
	}
}

// live runs one forwarder, and says whether it was the last.
func (m *mortal) live(ctx context.Context, life int) (over bool, err error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	publisher, config := m.publisher, m.config
	if life <= lives {
		after := max(1, m.faults.orders/10)
		publisher = counting(publisher, after, func() {
			m.faults.injected.ForwarderKills.Add(1)
			kill()
		})
		config.CloseTimeout = time.Millisecond // no time to hear of what is in flight
	}
	fwd, err := forwarder.New(m.pool, publisher, config)
	if err != nil {
		return true, err
	}
	if !m.succeed(fwd) {
		return true, nil
	}
	go func() {
		select {
		case <-fwd.Running():
			m.runsFirst.Do(func() { close(m.running) })
		case <-ctx.Done():
		}
	}()
	err = fwd.Run(ctx)
	return life > lives || m.isClosed(), err
}

// succeed makes fwd the current one, unless there is to be none any more.
func (m *mortal) succeed(fwd *forwarder.Forwarder) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = fwd
	return !m.closed
}

func (m *mortal) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// Running implements service.Forwarder.
func (m *mortal) Running() <-chan struct{} { return m.running }

// Hint implements service.Forwarder.
func (m *mortal) Hint() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current.Hint()
}

// Close implements service.Forwarder.
func (m *mortal) Close() error {
	m.mu.Lock()
	m.closed = true
	current := m.current
	m.mu.Unlock()
	return current.Close()
}
