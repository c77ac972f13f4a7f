package dispatch

import "time"

// outage counts the consecutive failures of one kind of work.
type outage struct {
	failures int
	until    time.Time // the work is not tried again before this time
}

func (s *Scheduler) fails(o *outage, work Work, err error, now time.Time) {
	o.failures++
	o.until = now.Add(s.config.Jitter(s.config.Pause(o.failures)))
	s.notice(Notice{Kind: WorkFailed, Work: work, Err: err})
}

// worked records a success. It returns true if the previous try had failed.
func (s *Scheduler) worked(o *outage, work Work) (again bool) {
	if o.failures == 0 {
		return false
	}
	*o = outage{}
	s.notice(Notice{Kind: WorkSucceeded, Work: work})
	return true
}

// pausing reports whether the work must wait because of a failure. If it must wait,
// pausing also makes sure that Step is called when the wait is over.
func (s *Scheduler) pausing(o *outage, now time.Time) bool {
	if now.Before(o.until) {
		s.wake(o.until)
		return true
	}
	return false
}
