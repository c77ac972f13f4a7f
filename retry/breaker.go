package retry

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Breaker pauses a consumer while most of its messages fail for one reason, for example because a
// service that its handler calls is down. The pause applies to all instances, and costs no attempt:
// calls that failed before it opened are not counted either. After a while, one instance tries one
// message. If its handler succeeds, the pause ends. Otherwise the next try follows later. Each
// consumer and topic has its own breaker.
//
// It opens if at least Failures of the last messages have failed with the same error, apart from
// ids and numbers, and these are at least three quarters of them; or after one error of
// [Unavailable]. Panics and errors of [Permanent] and [Own] do not count.
//
// If this is so in at most half of the running instances, only these instances pause. So an instance
// without a connection to the service does not stop the others.
type Breaker struct {
	// Failures is the number of different messages that must have failed. Defaults to 5.
	Failures int

	// MaxWait is the longest time between two tries. The first one follows after a second, and
	// each later time is twice as long. After an error of [After], the time in it applies.
	// Defaults to 1 minute.
	MaxWait time.Duration

	// OnChange is called when the breaker has opened or closed, for example to tell people. Only
	// the instance that has opened or closed it calls OnChange, one call after the other, and does
	// not wait for it. If the process dies, a change is not reported. Defaults to nil.
	OnChange func(c BreakerChange)
}

// BreakerChange says that a breaker has opened or closed.
type BreakerChange struct {
	Consumer, Topic string

	// Open reports whether the breaker has opened. All reports whether the change applies to all
	// instances, and not only to this one.
	Open, All bool

	// Why says how many messages have failed. It is "" if the breaker has closed. It contains no
	// text of an error.
	Why string
}

func (b Breaker) withDefaults() Breaker {
	if b.Failures == 0 {
		b.Failures = 5
	}
	if b.MaxWait == 0 {
		b.MaxWait = time.Minute
	}
	return b
}

func (b Breaker) validate(policy Policy) error {
	var errs []error
	if b.Failures < 0 {
		errs = append(errs, fmt.Errorf("Breaker.Failures is %d: negative", b.Failures))
	}
	if b.MaxWait < minWait {
		errs = append(errs, fmt.Errorf("Breaker.MaxWait is %v: less than %v", b.MaxWait, minWait))
	}
	if policy.Delayed == 0 {
		errs = append(errs, errors.New("Breaker is set, but Policy.Delayed is negative: "+
			"messages would be given up on before the breaker opens, allow a delayed round"))
	}
	return errors.Join(errs...)
}

const (
	firstWait = time.Second // time until the first probe

	// minWait is the least MaxWait: 60, without a unit, would mean a loop of probes.
	minWait = 10 * time.Millisecond
)

// wait returns the time until the next probe, after a number of failed probes. after is the time
// that the service has asked for, or 0.
func (b Breaker) wait(probes int, after time.Duration) time.Duration {
	if after > 0 {
		return after
	}
	return backoff.Exponential{Base: min(firstWait, b.MaxWait), Max: b.MaxWait, Jitter: 0.2}.Jittered(probes + 1)
}

// windowTime is how long a call counts. A consumer with few messages needs a long time, because a
// message is given up on after 12 minutes by default.
const windowTime = 10 * time.Minute

// window contains the latest call of each of the last messages.
type window struct {
	failures int
	calls    []call // the latest call is the last one

	// Messages that have failed while the breaker was open, and those that failed before it closed:
	// another message has succeeded since. If they fail again, they may be the cause themselves, so
	// they do not count. Otherwise they would open the breaker again and again, and never be given
	// up on.
	failed, suspects map[string]bool
}

// call is the latest call for a message.
type call struct {
	id    string // see [meta.Identity]
	group string // failure group, or "" if the service is not the cause of a failure
	at    time.Time

	// What the failed calls of this group have cost the message.
	attempts, rounds int
}

// add adds a call, and reports whether the breaker must open. If it need not, the call costs the
// message an attempt. unavailable is set after an error of Unavailable.
func (w *window) add(id, group string, unavailable bool, at time.Time) (opens bool) {
	next := call{id: id, group: group, at: at}
	if i := w.index(id); i >= 0 {
		if w.calls[i].group == group {
			next.attempts, next.rounds = w.calls[i].attempts, w.calls[i].rounds
		}
		w.calls = slices.Delete(w.calls, i, i+1)
	}
	w.calls = append(w.calls, next)
	if size := 4 * w.failures; len(w.calls) > size {
		w.calls = slices.Delete(w.calls, 0, len(w.calls)-size)
	}
	if group == "" {
		delete(w.suspects, id)
		return false
	}
	failed, of := w.count(group, at)
	opens = (unavailable || failed >= w.failures && 4*failed >= 3*of) && !w.suspects[id]
	if !opens {
		w.calls[len(w.calls)-1].attempts++
	}
	return opens
}

// maxFailed limits the memory for the messages that fail while the breaker is open.
const maxFailed = 1000

// open is called after a call has failed while the breaker is open, or has opened it.
func (w *window) open(id string) {
	if w.failed == nil {
		w.failed = map[string]bool{}
	}
	if len(w.failed) < maxFailed {
		w.failed[id] = true
	}
}

// close is called when the breaker has closed.
func (w *window) close() { w.calls, w.suspects, w.failed = nil, w.failed, nil }

func (w *window) count(group string, now time.Time) (failed, of int) {
	for _, c := range w.calls {
		if now.Sub(c.at) > windowTime || w.suspects[c.id] {
			continue
		}
		of++
		if c.group == group {
			failed++
		}
	}
	return failed, of
}

func (w *window) index(id string) int {
	return slices.IndexFunc(w.calls, func(c call) bool { return c.id == id })
}

// addRound is called after a message was parked for its next round.
func (w *window) addRound(id string) {
	if i := w.index(id); i >= 0 {
		w.calls[i].rounds++
	}
}

// take returns what the failed calls have cost a message, so that they are given back.
func (w *window) take(id string) (attempts, rounds int) {
	i := w.index(id)
	if i < 0 {
		return 0, 0
	}
	attempts, rounds = w.calls[i].attempts, w.calls[i].rounds
	w.calls[i].attempts, w.calls[i].rounds = 0, 0
	return attempts, rounds
}

// charges returns what the failed calls of a group have cost, and empties the window.
func (w *window) charges(group string) (all []parkedrows.Charge) {
	for _, c := range w.calls {
		if c.group == group && c.attempts > 0 {
			if meta.IsID(c.id) { // rows of other messages cannot be found
				all = append(all, parkedrows.Charge{MessageID: c.id, Attempts: c.attempts, Rounds: c.rounds})
			}
			w.open(c.id)
		}
	}
	w.calls = nil
	return all
}

// outage reports whether an error may have been caused by the service that the handler calls.
func outage(v *chain.Error, err error) bool {
	return v.Kind == chain.Failed && !v.Own && usercode.Stack(err) == "" && !errors.Is(err, usercode.ErrExited)
}

// result is the result of a probe.
type result int

const (
	noResult  result = iota // the message returned without a result, for example because the database is away
	skipped                 // the handler was not called, or failed only because of the message
	succeeded               // closes the breaker
	failed
)

// probe is a message that is tried while the breaker is open, or the wait for such a message.
type probe struct {
	since time.Time // the message may start since then
	lease time.Time // end of the lease; zero if the breaker is open for this instance alone

	started bool
	ended   bool
	result  result
	wait    time.Duration // until the next probe, after the result failed
}

const (
	// sourceTime is how long a probe waits for a message from one source before it takes one from
	// either. The sources take turns: the parked messages may fail for reasons of their own, and
	// messages of the broker should be neither returned nor parked for each probe.
	sourceTime = time.Second

	// probeTime is how long an instance waits for a message before it lets another instance probe.
	// The transport may deliver only to that one.
	probeTime = 5 * time.Second

	// pauseAfterNoResult is the pause before another message is tried.
	pauseAfterNoResult = time.Second

	// othersFirst is how long the instance whose probe has failed lets the others probe first.
	othersFirst = time.Second
)

// source returns where the message of a probe may come from. probes is the number of failed probes.
func (p *probe) source(probes int, now time.Time) parkedrows.Source {
	switch {
	case p == nil || p.started || now.Before(p.since):
		return 0
	case now.Sub(p.since) >= sourceTime:
		return parkedrows.FromBoth
	case probes%2 == 0:
		return parkedrows.FromRows
	}
	return parkedrows.FromTransport
}

// opening is a breaker that is open for one instance alone.
type opening struct {
	group, why string
	until      time.Time
	wait       time.Duration
	probes     int
	told       bool // the database knows it
}

// step is what the goroutine of a breaker does next.
type step int

const (
	waits      step = iota
	tells           // the database that calls fail in this instance
	claims          // a probe for all instances
	extends         // the lease of the probe
	passes          // the probe on to another instance
	failsProbe      // ends the probe, and waits
	closes          // the breaker for all instances
	startsOwn       // a probe for this instance
	failsOwn
	closesOwn
	heals    // tells the database that calls do not fail in this instance any more
	tryAgain // with another message
)

// state is what an instance knows about its breaker, besides the row that all instances read.
type state struct {
	own   *opening // nil if the breaker is not open for this instance alone
	probe *probe   // nil while no message may start
	told  bool     // the database has stored that calls fail in this instance
}

// next decides the next step. until is when next must be called again, at the latest.
func (s *state) next(row *parkedrows.Break, owner string, lease time.Duration, now time.Time) (next step, until time.Time) {
	const soon = time.Second
	own, p := s.own, s.probe
	switch {
	case p != nil && p.ended && p.result <= skipped:
		return tryAgain, now
	case row != nil && p == nil:
		due := row.Due
		if row.Prober == owner {
			due = due.Add(othersFirst)
		}
		if now.Before(due) {
			return waits, earlier(due, now.Add(soon)) // another instance may change the time
		}
		return claims, now
	case row != nil && p.ended && p.result == succeeded:
		return closes, now
	case row != nil && p.ended:
		return failsProbe, now
	case row != nil && !p.started && now.Sub(p.since) >= probeTime:
		return passes, now
	case row != nil && p.lease.Sub(now) < lease/2:
		return extends, now
	case row != nil:
		return waits, earlier(p.lease.Add(-lease/2), now.Add(soon))
	case own == nil && s.told:
		return heals, now
	case own == nil:
		return waits, now.Add(time.Hour)
	case p == nil && !own.told:
		return tells, now
	case p == nil && now.Before(own.until):
		return waits, own.until
	case p == nil:
		return startsOwn, now
	case p.ended && p.result == succeeded:
		return closesOwn, now
	case p.ended:
		return failsOwn, now
	}
	return waits, now.Add(soon)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
