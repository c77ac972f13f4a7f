package retry_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// meters is a provider whose registrations call the function unregistered when they end.
type meters struct {
	noop.MeterProvider
	unregistered func()
}

func (m meters) Meter(string, ...metric.MeterOption) metric.Meter {
	return meter{unregistered: m.unregistered}
}

type meter struct {
	noop.Meter
	unregistered func()
}

func (m meter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return registration{unregistered: m.unregistered}, nil
}

type registration struct {
	noop.Registration
	unregistered func()
}

func (r registration) Unregister() error {
	r.unregistered()
	return nil
}

// A router ends as soon as its subscriptions have ended. At that time, the metrics of the
// table must not be observed any more.
func TestClosedSubscriptionIsNoLongerObserved(t *testing.T) {
	t.Parallel()
	var (
		messages <-chan *message.Message
		calls    int
	)
	provider := meters{unregistered: func() {
		calls++
		select {
		case <-messages:
			t.Error("the subscription ended first")
		default:
		}
	}}
	b := newBench(t, testkit.SQLite(t), func(c *retry.Config) { c.MeterProvider = provider })
	sub := b.retries.Subscriber(consumer, newTransport())
	var err error
	if messages, err = sub.Subscribe(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if calls != 1 {
		t.Errorf("Unregister was called %d times, want once", calls)
	}
}
