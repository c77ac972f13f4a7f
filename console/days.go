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
	// shownDays is the number of days in the chart.
	shownDays = 30

	// daysAge is the minimum pause between two counts. To limit the load, the pause also
	// lasts at least daysShare times as long as the last count.
	daysAge   = 10 * time.Minute
	daysShare = 100

	// daysTimeout is the timeout of one count.
	daysTimeout = 10 * time.Minute
)

// days contains the numbers of messages of the latest days. The messages are counted in
// the background, because the tables may have many millions of rows. The numbers of
// earlier days do not change any more, so only the last two days are counted again.
type days struct {
	mu   sync.Mutex
	all  []status.Day
	next time.Time // time of the next count
}

// refresh counts the messages again if the pause after the last count is over.
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

// chart returns the days as JSON, or "" before the first count.
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

// getDays shows the numbers of the overview's chart in a table.
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
