package console

import (
	"sync"
	"time"
)

const (
	// paceSpan is the time over which the speed of a replay is measured.
	paceSpan = 15 * time.Second

	// mostPaces is the maximum number of replays that are measured at the same time.
	mostPaces = 50
)

// paces measures the speed of the replays that people look at. Another process may be
// running such a replay.
type paces struct {
	mu  sync.Mutex
	all map[int64][]pace
}

// pace is a sample of a replay. The field ended is the number of messages that had an
// outcome at the time in the field at.
type pace struct {
	at    time.Time
	ended int
}

// add adds a sample of a replay. It returns the rate in messages per second, or 0 if
// the rate is not known yet.
func (p *paces) add(id int64, at time.Time, ended int) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.all[id]
	if n := len(list); n > 0 && ended < list[n-1].ended { // an entry that had failed was replayed again
		list = nil
	}
	for len(list) > 1 && at.Sub(list[1].at) >= paceSpan {
		list = list[1:]
	}
	if len(p.all) >= mostPaces && list == nil {
		p.all = nil
	}
	if p.all == nil {
		p.all = map[int64][]pace{}
	}
	if n := len(list); n == 0 || at.Sub(list[n-1].at) >= time.Second/2 { // many people may watch
		p.all[id] = append(list, pace{at, ended})
	}
	if len(list) == 0 {
		return 0
	}
	return float64(ended-list[0].ended) / max(0.001, at.Sub(list[0].at).Seconds())
}
