package dispatch

import "time"

// refusals counts the refused messages of each topic. An episode is the time from the
// first refusal of a topic until the topic works again. In each episode, the log
// contains one error for the first refusal, and one line for the first confirm after
// it. A topic can refuse messages because, for example, no queue is bound, or a queue
// is full.
type refusals map[string]*refusal

type refusal struct {
	attempts int // refusals in this episode
	last     time.Time
	accepted bool // a message of the topic was confirmed since the first refusal
}

// A refusal begins a new episode if two conditions hold: a message of the topic was
// confirmed in the current episode, and none was refused for refusalsQuiet. At most
// maxRefusals topics are remembered.
const (
	refusalsQuiet = time.Minute
	maxRefusals   = 1000
)

// refuse records a refusal. It reports whether a new episode begins with this refusal.
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

// accept records a confirm. For the first confirm of an episode, it returns the number
// of refusals in the episode. Otherwise it returns 0.
func (r refusals) accept(topic string) (refused int) {
	t := r[topic]
	if t == nil || t.accepted {
		return 0
	}
	t.accepted = true
	return t.attempts
}
