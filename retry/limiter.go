package retry

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/parkedrows"
)

// limiter lets the messages of one subscription start at the pace of the consumer's limit. It takes
// starts from the row that all instances share, as many as its messages need. While no message
// waits, it takes none.
type limiter struct {
	*Retries

	instance parkedrows.Instance
	pauses   *parkedrows.PauseWatch
	closing  <-chan struct{}
	wake     chan struct{}
	wakeRows func() // called when parked messages may be claimed

	limited atomic.Bool // whether there is a limit

	mu      sync.Mutex
	limit   parkedrows.Limit
	set     parkedrows.Limit // by an operator
	starts  starts
	waiting int           // messages that wait until starts are taken
	rows    int           // parked messages that have not started
	more    chan struct{} // closed when starts were taken
	renewed chan struct{} // closed when the limit has changed

	failing bool // a failed step was logged
}

func newLimiter(f *fetcher) *limiter {
	l := &limiter{
		Retries: f.Retries, instance: parkedrows.Instance{Consumer: f.consumer, Topic: f.topic, Owner: f.owner},
		pauses: f.pauses, closing: f.closing, wake: make(chan struct{}, 1), wakeRows: f.wakeUp,
		more: make(chan struct{}), renewed: make(chan struct{}),
	}
	l.apply()
	return l
}

// apply uses the limit that is valid now: that of an operator, or the configured one. Starts of
// another limit are dropped.
func (l *limiter) apply() (limited bool, changed <-chan struct{}) {
	set, changed := l.pauses.Limit()
	limit := set
	if limit == (parkedrows.Limit{}) {
		limit = l.config.Limits.row()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	limited = limit.PerSecond > 0
	if limit != l.limit || set != l.set {
		l.limit, l.set, l.starts = limit, set, starts{most: limit.MaxStarts()}
		l.limited.Store(limited)
		close(l.renewed)
		l.renewed = make(chan struct{})
		l.wakeRows()
	}
	return limited, changed
}

func (l *limiter) isLimited() bool { return l != nil && l.limited.Load() }

// start is the start of a message. A nil start need not be waited for.
type start struct {
	of   *limiter
	from parkedrows.Source

	at      time.Time       // zero before a start was taken
	renewed <-chan struct{} // of the limit from which it was taken
	waits   bool
	begun   bool
}

// forMessage returns the start of a message. Call end when the message has started, or will not.
func (l *limiter) forMessage(msg *message.Message, from parkedrows.Source) *start {
	if !l.isLimited() || parksUnhandled(msg, from) {
		return nil
	}
	if from == parkedrows.FromRows {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.rows++
	}
	return &start{of: l, from: from}
}

func (s *start) end() {
	if s == nil || s.from != parkedrows.FromRows {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.rows--
	s.of.wakeRows()
}

// await waits until the message may start, and then returns true. It returns false if one of the
// channels is closed before. Then call it again, or end.
func (s *start) await(changed, closing <-chan struct{}) bool {
	for s != nil && !s.begun {
		more := s.take()
		var come <-chan time.Time
		if more == nil {
			come = time.After(time.Until(s.at))
		}
		var end bool
		select {
		case <-come:
			s.begun = true
		case <-more:
		case <-s.renewed:
			s.at = time.Time{}
		case <-changed:
			end = true
		case <-closing:
			end = true
		}
		if more != nil {
			s.of.stopsWaiting()
		}
		if end {
			return false
		}
	}
	return true
}

// take takes a start, or returns a channel that is closed when there are more.
func (s *start) take() (more <-chan struct{}) {
	if !s.at.IsZero() { // taken before a pause of the consumer
		return nil
	}
	l := s.of
	l.mu.Lock()
	defer l.mu.Unlock()
	s.renewed = l.renewed
	now := time.Now()
	if !l.limited.Load() {
		s.at = now
		return nil
	}
	at, ok := l.starts.take(now)
	if wait := !ok || at.After(now); wait && !s.waits {
		s.waits = true
		l.instruments.limited.Add(1, 0)
	}
	if ok {
		s.at = at
		return nil
	}
	l.waiting++
	l.wakeUp()
	return l.more
}

func (l *limiter) stopsWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
}

// again waits until the handler of a message may be called again. It returns false if the consumer
// shuts down.
func (l *limiter) again() bool {
	if !l.isLimited() {
		return true
	}
	return (&start{of: l, from: parkedrows.FromTransport}).await(nil, l.closing)
}

// room returns how many parked messages to claim at most: those that may start, and one more, whose
// wait takes more starts.
func (l *limiter) room(rows, queued int) int {
	if !l.isLimited() {
		return rows
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, min(rows, l.starts.left(time.Now())+1-l.rows-queued))
}

func (l *limiter) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// takeAgain are the pauses after other instances have taken all starts.
var takeAgain = backoff.Exponential{Base: 50 * time.Millisecond, Max: 500 * time.Millisecond, Jitter: 0.5}

// run takes starts until the subscription ends.
func (l *limiter) run(closing context.Context) {
	ctx := context.WithoutCancel(closing)
	taker, misses := l.store.Starts(), 0
	for {
		limited, changed := l.apply()
		var wake <-chan struct{}
		if limited {
			wake = l.wake
		}
		select {
		case <-closing.Done():
			return
		case <-changed:
			continue
		case <-wake:
		}
		took, err := l.take(ctx, taker)
		l.report(err)
		switch {
		case took:
			misses = 0
			continue
		case err != nil:
			misses = 10
		default:
			misses++
		}
		pause := time.NewTimer(takeAgain.Jittered(misses))
		select {
		case <-closing.Done():
		case <-changed:
		case <-pause.C:
		}
		pause.Stop()
		l.wakeUp()
	}
}

// take takes starts for the messages that wait. took is false if other instances have taken all.
func (l *limiter) take(ctx context.Context, taker *parkedrows.StartsReader) (took bool, err error) {
	l.mu.Lock()
	limit, set, n, waiting := l.limit, l.set, l.starts.next(), l.waiting
	l.mu.Unlock()
	if waiting == 0 {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.Lease)
	defer cancel()
	taken, took, err := taker.Take(ctx, l.instance, limit, set, n)
	if err != nil || !took {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == limit && l.set == set {
		l.starts.add(taken)
		close(l.more)
		l.more = make(chan struct{})
		l.wakeRows()
	}
	return true, nil
}

func (l *limiter) report(err error) {
	fields := watermill.LogFields{"consumer": l.instance.Consumer, "topic": l.instance.Topic}
	switch {
	case err != nil && !l.failing:
		l.failing = true
		l.config.Logger.Error("Limit of the consumer cannot be read, its messages wait, retrying", err, fields)
	case err == nil && l.failing:
		l.failing = false
		l.config.Logger.Info("Limit of the consumer is read again", fields)
	}
}

// starts are the starts that an instance has taken and not used.
type starts struct {
	most    int // limits size
	size    int // how many were taken last
	missed  int // how many of them passed unused
	pending []parkedrows.Starts
}

// take returns the time of the next start. It drops those that have passed.
func (s *starts) take(now time.Time) (at time.Time, ok bool) {
	s.drop(now)
	if len(s.pending) == 0 {
		return time.Time{}, false
	}
	p := &s.pending[0]
	at = p.Next
	p.Next = p.Next.Add(p.Period)
	if p.N--; p.N == 0 {
		s.pending = s.pending[1:]
	}
	return at, true
}

func (s *starts) drop(now time.Time) {
	for len(s.pending) > 0 {
		p := &s.pending[0]
		passed := now.Sub(p.Next) - p.Late
		if passed <= 0 {
			return
		}
		n := min(p.N, int((passed-1)/p.Period)+1)
		s.missed += n
		if p.N -= n; p.N == 0 {
			s.pending = s.pending[1:]
		}
		p.Next = p.Next.Add(time.Duration(n) * p.Period)
	}
}

func (s *starts) left(now time.Time) (n int) {
	s.drop(now)
	for _, p := range s.pending {
		n += p.N
	}
	return n
}

// next returns how many starts to take next: more than the last time, but fewer if some passed
// unused, because others could have used them.
func (s *starts) next() int {
	switch {
	case s.size == 0:
		return 1
	case s.missed > 0:
		return max(1, s.size-s.missed)
	}
	return min(s.most, s.size+s.size/4+1)
}

func (s *starts) add(taken parkedrows.Starts) {
	s.pending = append(s.pending, taken)
	s.size, s.missed = taken.N, 0
}
