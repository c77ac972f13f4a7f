package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"
)

// silence contains the longest times without a published and without a handled message.
type silence struct {
	Published time.Duration `json:"published"`
	Handled   time.Duration `json:"handled"`
}

func (s silence) String() string {
	return fmt.Sprintf("%.1f s (published) and %.1f s (handled)", s.Published.Seconds(), s.Handled.Seconds())
}

func (s silence) longer(than silence) silence {
	return silence{max(s.Published, than.Published), max(s.Handled, than.Handled)}
}

// flow returns how many messages were published and handled so far. The processes report this five
// times per second.
func (w *world) flow() (published, handled int64) {
	return w.count(forwarding, "once.forwarder.published/confirmed"), w.count(consuming, "once.dedup.handled/applied")
}

// listen measures until the returned function is called, which returns the longest silence.
func (w *world) listen() (stop func() silence) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	var longest silence
	running.Go(func() {
		published, handled := w.flow()
		publishedAt, handledAt := time.Now(), time.Now()
		tick := time.NewTicker(beatEvery / 4)
		defer tick.Stop()
		for more := true; more; {
			select {
			case <-tick.C:
			case <-ended:
				more = false
			}
			longest = longest.longer(silence{time.Since(publishedAt), time.Since(handledAt)})
			p, h := w.flow()
			if p != published {
				published, publishedAt = p, time.Now()
			}
			if h != handled {
				handled, handledAt = h, time.Now()
			}
		}
	})
	return func() silence {
		close(ended)
		running.Wait()
		return longest
	}
}

// flows waits until messages are published and handled.
func (s *strike) flows(ctx context.Context) error {
	published, handled := s.flow()
	return s.until(ctx, "messages are published and handled", func() bool {
		p, h := s.flow()
		return p > published && h > handled
	})
}

// printSilences prints the longest silences of each kind for which they were measured.
func (r *report) printSilences(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "longest time without a message\tpublished\thandled\tpublished afterwards\thandled afterwards")
	measured := false
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
	for _, row := range r.Rows {
		if row.During == (silence{}) {
			continue
		}
		measured = true
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Kind,
			seconds(row.During.Published), seconds(row.During.Handled), seconds(row.After.Published), seconds(row.After.Handled))
	}
	if measured {
		fmt.Fprintln(out)
		_ = table.Flush()
	}
}
