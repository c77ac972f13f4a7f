package roles

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/health"
)

// broker is a publisher whose outcomes depend on the topic.
type broker struct {
	mu   sync.Mutex
	seen map[string]int
}

// answer is an error that reports its own outcome, like the errors of package
// rabbit.
type answer string

func (a answer) Error() string      { return string(a) }
func (a answer) Refused() bool      { return a == "refused once" }
func (a answer) Unacceptable() bool { return a == "unacceptable" }

func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, msg := range msgs {
		b.seen[msg.UUID]++
		if topic == "unacceptable" || topic == "refused once" && b.seen[msg.UUID] == 1 {
			return answer(topic)
		}
	}
	return nil
}

func (b *broker) Close() error { return nil }

// run runs a forwarder until end is called.
func (p *part) run(config forwarder.Config) (f *forwarder.Forwarder, end func()) {
	p.Helper()
	config.Schema, config.PollMax = tables, 20*time.Millisecond
	config.Backoff = func(int) time.Duration { return 50 * time.Millisecond }
	config.AfterDead = forwarder.BlockKey
	f, err := forwarder.New(p.db, &broker{seen: map[string]int{}}, config)
	kit.OK(p, err)
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(context.WithoutCancel(p.Context())); err != nil {
			p.Errorf("the forwarder has ended: %v", err)
		}
	})
	return f, func() {
		p.Helper()
		kit.Check(p, f.Close())
		running.Wait()
	}
}

// healthy runs the health checks of a process with the role of the part. A blocked key makes it no
// less ready.
func (p *part) healthy(config health.Config) {
	p.Helper()
	config.Schema = tables
	h, err := health.New(p.db, config)
	p.must(err)
	if report := h.Health(p.Context()); !report.Ready() {
		p.Error(report.Err())
	}
}

// forward leaves three dead letters, two of which block their keys, and a log
// of sent messages.
func (p *part) forward() {
	p.Helper()
	reader := metric.NewManualReader()
	// This row blocks a key whose first message does not exist.
	p.exec(p.admin, `INSERT INTO app.mine_blocked_keys VALUES ('gone', 0, 0, 'refused')`)
	_, end := p.run(forwarder.Config{KeepSent: time.Minute, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	p.awaitNumber(3, `SELECT COUNT(*) FROM app.mine_outbox_dead`)
	p.awaitNumber(2, `SELECT COUNT(*) FROM app.mine_outbox`)
	p.awaitNumber(2, `SELECT COUNT(*) FROM app.mine_blocked_keys`)
	p.awaitNumber(8, `SELECT COUNT(*) FROM app.mine_outbox_sent`)
	kit.Check(p, reader.Collect(p.Context(), &metricdata.ResourceMetrics{}))
	p.healthy(health.Config{MaxLag: time.Millisecond})                  // so it looks why messages wait
	second, endSecond := p.run(forwarder.Config{KeepSent: time.Minute}) // the second forwarder takes over a share of the slots
	<-second.Running()
	p.awaitNumber(2, `SELECT COUNT(DISTINCT owner) FROM app.mine_slots`)
	endSecond()
	end()
	p.awaitNumber(0, `SELECT COUNT(*) FROM app.mine_forwarders WHERE lease_until >= now()`)

	// Without the sent log, sent messages are deleted.
	p.exec(p.admin, `INSERT INTO app.mine_outbox (message_id, topic, slot, payload, metadata) VALUES ('13', 'fine', 0, '', '{}')`)
	_, end = p.run(forwarder.Config{})
	p.awaitNumber(2, `SELECT COUNT(*) FROM app.mine_outbox`)
	end()
}
