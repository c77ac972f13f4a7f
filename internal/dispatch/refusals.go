package dispatch

import "time"

// refusals counts the refused messages of each topic, so that the log has one error for
// the first refusal of an episode, and one line at its end. A topic refuses messages
// for example because no queue is bound, or because a queue is full.
type refusals map[string]*refusal

type refusal struct {
	attempts int // refused attempts in this episode
	last     time.Time
	accepted bool // a message of the topic was confirmed since the first refusal
}

// A refusal begins a new episode if the topic has accepted a message since the last
// one, and has refused none for refusalsQuiet. At most maxRefusals topics are
// remembered.
const (
	refusalsQuiet = time.Minute
	maxRefusals   = 1000
)

// refuse records a refusal. It reports whether the refusal begins an episode.
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

// accept records a confirm. If it is the first confirm of an episode, it returns how
// many attempts were refused in the episode. Otherwise it returns 0.
func (r refusals) accept(topic string) (refused int) {
	t := r[topic]
	if t == nil || t.accepted {
		return 0
	}
	t.accepted = true
	return t.attempts
}
