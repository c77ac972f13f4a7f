package reconcile

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/telemetry"
)

// Kinds of differences. Each constant is the index of its kind in the values of the
// metric's label.
const (
	missing = iota
	phantom
)

// instruments are the metrics of a Sender.
type instruments struct {
	compared *telemetry.Counter
	found    *telemetry.Counter
	runs     *telemetry.Counter
}

func newInstruments(provider metric.MeterProvider) *instruments {
	meter := telemetry.NewMeter(provider, "reconcile")
	i := &instruments{
		compared: meter.Counter("once.reconcile.compared", "{message}", "Sent messages that were compared with those of a consumer."),
		found: meter.Counter("once.reconcile.found", "{message}",
			"Messages that were sent and not handled, or handled and never sent.",
			telemetry.Label{Key: telemetry.Reason, Values: []string{missing: "missing", phantom: "phantom"}}),
		runs: meter.Counter("once.reconcile.runs", "{run}", "Comparisons with a consumer, and steps that failed.", telemetry.Done()),
	}
	i.compared.Zero()
	i.found.Zero()
	i.runs.Zero()
	return i
}

func (i *instruments) failed() { i.runs.Add(1, telemetry.Failed) }

func (i *instruments) reported(reports []Report) {
	for n := range reports {
		i.runs.Add(1, telemetry.Ok)
		i.compared.Add(int64(reports[n].Sent), 0)
		i.found.Add(int64(len(reports[n].Missing)), missing)
		i.found.Add(int64(len(reports[n].Phantoms)), phantom)
	}
}
