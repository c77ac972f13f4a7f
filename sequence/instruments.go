package sequence

import "github.com/watermill-once/once/internal/telemetry"

// Outcomes of a message: indexes of outcomes.
const (
	applied = iota
	ignored
	held
	appliedWithGap
	givenUp
	merged
	unversioned
	invalid
	failed
	undecided
)

var outcomes = []string{
	applied: "applied", ignored: "stale", held: "held", appliedWithGap: "applied_with_gap", givenUp: "given_up", merged: "merged",
	unversioned: "unversioned", invalid: "invalid", failed: "failed", undecided: "undecided",
}

type instruments struct {
	handled *telemetry.Counter
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "sequence")
	i := &instruments{handled: meter.Counter("once.sequence.handled", "{message}",
		"Messages by outcome. Each check of a held message counts.",
		telemetry.Label{Key: telemetry.Outcome, Values: outcomes})}
	i.handled.Zero()
	return i
}
