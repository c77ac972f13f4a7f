package sequence

import "github.com/watermill-once/once/internal/telemetry"

// Outcomes of a message. The values are indexes of the variable outcomes.
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

// instruments are the metrics of a Resequencer.
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
