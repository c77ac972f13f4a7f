package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/watermill-once/once/status"
)

const (
	// historyWindow is the period that the charts of the overview show. The console
	// continues to take samples for this period after somebody has requested the overview.
	// If somebody requests the overview again in this period, the charts have no gap.
	historyWindow = time.Hour

	// backgroundEvery is the time between two samples while nobody requests the overview.
	backgroundEvery = 10 * time.Second
)

// history contains the numbers of the last hour for the charts.
type history struct{ waiting, rates series }

func (h *history) add(o *overview) {
	h.waiting.window, h.rates.window = historyWindow, historyWindow
	h.waiting.add(o.At, total(o.Outbox), total(o.Dead), total(o.Entries))
	if o.In != "" {
		h.rates.add(o.At, o.rates[:]...)
	}
}

// total returns the number of rows, or the estimate of this number if the rows were not
// all counted.
func total(c status.Count) float64 { return float64(max(int64(c.N), c.About)) }

// upto returns a count as text. The text shows whether the count is an estimate, and
// whether it stopped at its limit.
func upto(c status.Count) string {
	switch {
	case c.About > 0:
		return "about " + count(c.About)
	case c.More:
		return "more than " + count(c.N)
	}
	return count(c.N)
}

// perSecond returns a rate as text, such as "0.5" or "1,200".
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

// sampler takes samples in the background.
type sampler struct {
	mu      sync.Mutex
	start   func()
	running bool
	looked  time.Time
}

// watch records that somebody has requested the overview. If the sampler does not take
// samples, watch starts it.
func (s *sampler) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if !s.running {
		s.running = true
		s.start()
	}
}

// over reports whether nobody has requested the overview for the period historyWindow.
// The sampler then stops.
func (s *sampler) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = time.Since(s.looked) < historyWindow
	return !s.running
}

// sample takes samples until nobody has requested the overview for the period
// historyWindow.
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

// flow contains the latest readings of two counters: of messages that were written to the
// outbox, and of messages that have left it.
type flow struct{ samples []status.Flow }

// flowSpan is the time over which rates are averaged. It must be much longer than a
// second, because PostgreSQL updates its counters only about once a second.
const flowSpan = 10 * time.Second

// add adds a reading of the counters. It returns the average rates per second over the
// time flowSpan. The result known is false if there is no earlier reading to compare
// with.
func (f *flow) add(now status.Flow) (in, out float64, known bool) {
	for len(f.samples) > 1 && now.At.Sub(f.samples[1].At) >= flowSpan {
		f.samples = f.samples[1:]
	}
	if len(f.samples) > 0 {
		first := f.samples[0]
		if seconds := now.At.Sub(first.At).Seconds(); seconds > 0 && now.Written >= first.Written && now.Removed >= first.Removed {
			in, out, known = float64(now.Written-first.Written)/seconds, float64(now.Removed-first.Removed)/seconds, true
		} else {
			f.samples = nil // the database has reset its counters
		}
	}
	f.samples = append(f.samples, now)
	return in, out, known
}
