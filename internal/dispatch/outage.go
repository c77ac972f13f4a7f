package dispatch

import "time"

// outage counts how often one kind of work has failed without a success in between.
type outage struct {
	failures int
	until    time.Time // the work is not tried again before this time
}

func (s *Scheduler) fails(o *outage, work Work, err error, now time.Time) {
	o.failures++
	o.until = now.Add(s.config.Jitter(s.config.Pause(o.failures)))
	s.notice(Notice{Kind: WorkFailed, Work: work, Err: err})
}

// works records a success. It returns true if the work had failed before.
func (s *Scheduler) works(o *outage, work Work) (again bool) {
	if o.failures == 0 {
		return false
	}
	*o = outage{}
	s.notice(Notice{Kind: WorkSucceeded, Work: work})
	return true
}

// pausing reports whether the work must still wait after a failure. If so, it makes
// sure that the Scheduler wakes up when the wait is over.
func (s *Scheduler) pausing(o *outage, now time.Time) bool {
	if now.Before(o.until) {
		s.wake(o.until)
		return true
	}
	return false
}
