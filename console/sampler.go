package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/watermill-once/once/status"
)

const (
	// historyWindow is the time that the charts of the overview show. For so long after
	// the last look at the overview, the console goes on to take samples: who comes back
	// sees what happened meanwhile.
	historyWindow = time.Hour

	// backgroundEvery is the time between two samples while nobody looks.
	backgroundEvery = 10 * time.Second
)

// history is the numbers of the last hour.
type history struct{ waiting, rates series }

func (h *history) add(o *overview) {
	h.waiting.window, h.rates.window = historyWindow, historyWindow
	h.waiting.add(o.At, total(o.Outbox), total(o.Dead), total(o.Entries))
	if o.In != "" {
		h.rates.add(o.At, o.rates[:]...)
	}
}

// total is the number of rows, or the estimate of it.
func total(c status.Count) float64 { return float64(max(int64(c.N), c.About)) }

// upto renders a count that may be an estimate.
func upto(c status.Count) string {
	switch {
	case c.About > 0:
		return "about " + count(c.About)
	case c.More:
		return "more than " + count(c.N)
	}
	return count(c.N)
}

// perSecond renders a rate.
func perSecond(rate float64) string {
	switch {
	case rate == 0:
		return "0"
	case rate < 0.1:
		return "<0.1"
	case rate < 10:
		return fmt.Sprintf("%.1f", rate)
	}
	return count(int(rate))
}

// sampler knows whether samples are taken in the background.
type sampler struct {
	mu      sync.Mutex
	start   func()
	running bool
	looked  time.Time
}

// watch is called when somebody looks.
func (s *sampler) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if !s.running {
		s.running = true
		s.start()
	}
}

// over reports whether nobody has looked for an hour.
func (s *sampler) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = time.Since(s.looked) < historyWindow
	return !s.running
}

// sample takes samples until nobody has looked for an hour.
func (c *Console) sample(ctx context.Context) {
	tick := time.NewTicker(backgroundEvery)
	defer tick.Stop()
	for !c.sampler.over() {
		c.days.refresh(ctx, c.status, c.config.Logger)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		_, _ = c.readOverview(reading) // the next request reports an error
		cancel()
	}
}

// flow is the latest counts of messages that were written and have left the outbox.
type flow struct{ samples []status.Flow }

// flowSpan is the time over which rates are averaged. PostgreSQL counts about once a
// second.
const flowSpan = 10 * time.Second

// add returns the rates of the last seconds, and whether they are known.
func (f *flow) add(now status.Flow) (in, out float64, known bool) {
	for len(f.samples) > 1 && now.At.Sub(f.samples[1].At) >= flowSpan {
		f.samples = f.samples[1:]
	}
	if len(f.samples) > 0 {
		first := f.samples[0]
		if seconds := now.At.Sub(first.At).Seconds(); seconds > 0 && now.Written >= first.Written && now.Removed >= first.Removed {
			in, out, known = float64(now.Written-first.Written)/seconds, float64(now.Removed-first.Removed)/seconds, true
		} else {
			f.samples = nil // the database has begun to count again
		}
	}
	f.samples = append(f.samples, now)
	return in, out, known
}
