package dispatch

import "time"

// refusals counts the refused messages of each topic, for the log: one error
// for the first refusal of an episode, and one line at its end. A topic refuses
// messages for example because no queue is bound, or because a queue is full.
type refusals map[string]*refusal

type refusal struct {
	attempts int // that were refused
	last     time.Time
	accepted bool // a message of the topic was confirmed since the first refusal
}

// A refusal begins a new episode if the topic has accepted a message and has
// refused none for refusalsQuiet. At most maxRefusals topics are remembered.
const (
	refusalsQuiet = time.Minute
	maxRefusals   = 1000
)

// refuse notes a refusal and reports whether it begins an episode.
func (r *refusals) refuse(topic string, now time.Time) (first bool) {
	t := (*r)[topic]
	if first = t == nil || t.accepted && now.Sub(t.last) >= refusalsQuiet; first {
		if *r == nil || len(*r) >= maxRefusals {
			*r = refusals{}
		}
		t = &refusal{}
		(*r)[topic] = t
	}
	t.attempts++
	t.last = now
	return first
}

// accept notes a confirm. After the first one of an episode it returns the
// number of refused attempts, else 0.
func (r refusals) accept(topic string) (refused int) {
	t := r[topic]
	if t == nil || t.accepted {
		return 0
	}
	t.accepted = true
	return t.attempts
}
