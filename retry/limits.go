package retry

import "github.com/watermill-once/once/internal/parkedrows"

// Limits limits how many messages of a consumer start, for example because a service that its
// handler calls accepts only so many calls. All instances together keep the limit. Each topic of the
// consumer has its own. Another attempt without a pause counts like a message.
//
// Messages that must wait cost no attempt. Messages of the transport stay unacked, and parked ones
// stay in the table.
type Limits struct {
	// PerSecond is how many messages start per second, at least 0.001 and at most 100,000. Defaults
	// to 0: there is no limit.
	PerSecond float64

	// Burst is how many messages may start at once after fewer than PerSecond have started: in t
	// seconds, at most Burst + t·PerSecond messages start. At least a twentieth of PerSecond.
	// Defaults to what PerSecond allows in a second, at least 1. A smaller Burst costs more
	// statements, because the instances take fewer starts in advance.
	Burst int
}

func (l Limits) row() parkedrows.Limit { return parkedrows.Limit(l) }

func (l Limits) withDefaults() Limits { return Limits(l.row().WithDefaults()) }

func (l Limits) validate() error {
	if l == (Limits{}) {
		return nil
	}
	return l.row().Validate("Limits.")
}
