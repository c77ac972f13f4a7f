package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/operate/status"
)

const (
	// historyWindow is the period of the overview's charts, and how long samples are taken after
	// the last request, so that they have no gap.
	historyWindow = time.Hour

	backgroundEvery = 10 * time.Second
)

type history struct{ waiting, rates series }

func (h *history) add(o *overview) {
	h.waiting.window, h.rates.window = historyWindow, historyWindow
	h.waiting.add(o.At, total(o.Outbox), total(o.Dead), total(o.Entries))
	if o.In != "" {
		h.rates.add(o.At, o.rates[:]...)
	}
}

// An estimate counts if the rows were not all counted.
func total(c status.Count) float64 { return float64(max(int64(c.N), c.About)) }

func upto(c status.Count) string {
	switch {
	case c.About > 0:
		return "about " + count(c.About)
	case c.More:
		return "more than " + count(c.N)
	}
	return count(c.N)
}

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

func (s *sampler) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
	if !s.running {
		s.running = true
		s.start()
	}
}

func (s *sampler) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = time.Since(s.looked) < historyWindow
	return !s.running
}

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

// flow has the latest readings of the messages that were written to, and have left the outbox.
type flow struct{ samples []status.Flow }

// PostgreSQL updates its counters only about once a second, so rates are averages.
const flowSpan = 10 * time.Second

// known is false if there is no earlier reading.
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

// series is a list of samples for a chart. When it is full, every second one is removed, and
// samples are taken half as often, or with a window older ones are removed.
type series struct {
	window time.Duration
	times  []int64     // Unix time in seconds
	values [][]float64 // one list for each line of the chart
	every  time.Duration
	last   time.Time
}

const (
	mostSamples = 600
	sampleEvery = 2 * time.Second
)

func (s *series) add(at time.Time, numbers ...float64) {
	if s.every == 0 {
		s.every, s.values = sampleEvery, make([][]float64, len(numbers))
		if s.window > 0 {
			s.every = s.window / mostSamples
		}
	}
	if at.Sub(s.last) < s.every {
		return
	}
	s.last = at
	for s.window > 0 && len(s.times) > 0 && s.times[0] < at.Add(-s.window).Unix() {
		s.times = s.times[1:]
		for i := range s.values {
			s.values[i] = s.values[i][1:]
		}
	}
	if len(s.times) == mostSamples {
		s.every *= 2
		s.times = everySecond(s.times)
		for i := range s.values {
			s.values[i] = everySecond(s.values[i])
		}
	}
	s.times = append(s.times, at.Unix())
	for i, n := range numbers {
		s.values[i] = append(s.values[i], n)
	}
}

func everySecond[T any](list []T) []T {
	kept := list[:0]
	for i := 0; i < len(list); i += 2 {
		kept = append(kept, list[i])
	}
	return kept
}

// console.js reads the chart as JSON from an attribute of the page.
type chart struct {
	Labels []string `json:"labels"`
	Data   []any    `json:"data"`
}

func (s *series) chart(labels ...string) string {
	if len(s.times) < 2 {
		return ""
	}
	c := chart{Labels: labels, Data: []any{s.times}}
	for _, numbers := range s.values {
		c.Data = append(c.Data, numbers)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return string(text)
}

const (
	shownDays = 30

	// daysAge and daysShare times the duration of the last count are the minimum pause.
	daysAge   = 10 * time.Minute
	daysShare = 100

	daysTimeout = 10 * time.Minute
)

// days are counted in the background, because there may be many millions of messages.
type days struct {
	mu   sync.Mutex
	all  []status.Day
	next time.Time // time of the next count
}

func (d *days) refresh(ctx context.Context, reader *status.Reader, logger watermill.LoggerAdapter) {
	d.mu.Lock()
	now := time.Now().UTC()
	first := now.Truncate(24*time.Hour).AddDate(0, 0, 1-shownDays)
	since := first
	if n := len(d.all); n > 0 {
		since = d.all[n-1].Start.AddDate(0, 0, -1)
	}
	due := now.After(d.next)
	d.mu.Unlock()
	if !due {
		return
	}
	reading, cancel := context.WithTimeout(ctx, daysTimeout)
	defer cancel()
	latest, err := reader.Days(reading, since)
	took := time.Since(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = time.Now().Add(max(daysAge, daysShare*took))
	if err != nil {
		if ctx.Err() == nil {
			logger.Error("Console cannot count the messages of the last days", err, nil)
		}
		return
	}
	all := make([]status.Day, 0, shownDays)
	for _, old := range d.all {
		if !old.Start.Before(first) && old.Start.Before(latest[0].Start) {
			all = append(all, old)
		}
	}
	all = append(all, latest...)
	d.all = all
}

func (d *days) list() []status.Day {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all
}

func (d *days) chart() string {
	all := d.list()
	if len(all) == 0 {
		return ""
	}
	var times []int64
	numbers := make([][]int, 3)
	for _, day := range all {
		times = append(times, day.Start.Unix())
		for i, n := range []int{day.Sent, day.Quarantined + day.Dead, day.Handled} {
			numbers[i] = append(numbers[i], n)
		}
	}
	text, err := json.Marshal(chart{Labels: []string{"Sent", "Given up", "Handled"}, Data: []any{times, numbers[0], numbers[1], numbers[2]}})
	if err != nil {
		return ""
	}
	return string(text)
}

func (c *Console) getDays(w http.ResponseWriter, r *http.Request) error {
	c.sampler.watch()
	list := c.days.list()
	latestFirst := slices.Clone(list)
	slices.Reverse(latestFirst)
	p := page{Title: "30 days", Template: "days", Section: "overview", Body: latestFirst}
	if len(list) == 0 {
		p.Live = liveSeconds
	}
	return c.show(w, r, p)
}
