package sequence

import "github.com/watermill-once/once/internal/telemetry"

// What became of a message. The numbers are those of the counter's series.
const (
	applied = iota
	ignored
	held
	appliedWithGap
	givenUp
	unversioned
	invalid
	failed
	undecided
)

var outcomes = []string{
	applied: "applied", ignored: "stale", held: "held", appliedWithGap: "applied_with_gap", givenUp: "given_up",
	unversioned: "unversioned", invalid: "invalid", failed: "failed", undecided: "undecided",
}

// instruments are what a Resequencer tells about itself.
type instruments struct {
	handled *telemetry.Counter
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "sequence")
	i := &instruments{handled: meter.Counter("once.sequence.handled", "{message}",
		"What became of messages; one that is looked at again counts again.",
		telemetry.Label{Key: telemetry.Outcome, Values: outcomes})}
	i.handled.Zero()
	return i
}
