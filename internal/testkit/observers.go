package testkit

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Observers is a metric.MeterProvider that counts the registered callbacks.
type Observers struct {
	noop.MeterProvider

	registered atomic.Int64
}

// Registered returns the number of callbacks that were registered and not unregistered
// since then.
func (o *Observers) Registered() int64 { return o.registered.Load() }

// Meter implements metric.MeterProvider.
func (o *Observers) Meter(string, ...metric.MeterOption) metric.Meter {
	return observedMeter{registered: &o.registered}
}

type observedMeter struct {
	noop.Meter

	registered *atomic.Int64
}

func (m observedMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	m.registered.Add(1)
	return registration{registered: m.registered}, nil
}

type registration struct {
	noop.Registration

	registered *atomic.Int64
}

func (r registration) Unregister() error {
	r.registered.Add(-1)
	return nil
}
