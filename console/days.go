package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/status"
)

const (
	// shownDays is how many days the chart has.
	shownDays = 30

	// daysAge is how old the numbers of today may be. Counting must not take more than
	// a part of the time that daysShare names.
	daysAge   = 10 * time.Minute
	daysShare = 100

	// daysTimeout bounds the counting.
	daysTimeout = 10 * time.Minute
)

// days is the numbers of the latest days. They are counted in the background: the tables
// may have many millions of rows. The past does not change, so only the last two days are
// counted again.
type days struct {
	mu   sync.Mutex
	all  []status.Day
	next time.Time // when to count again
}

// refresh counts if it is time to.
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

// chart returns the days as JSON, or "" if they were not counted yet.
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

// getDays shows the numbers of the chart of the overview.
func (c *Console) getDays(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.authorize(r, Look); err != nil {
		return err
	}
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
