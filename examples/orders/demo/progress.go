package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows the number of effects: on a terminal as a bar, elsewhere as a line
// every two seconds.
type Progress struct {
	Out      io.Writer // nil shows nothing
	Terminal bool
}

// start shows the result of count again and again, until end is called.
func (p Progress) start(total int, count func(ctx context.Context) (int, error)) (end func()) {
	if p.Out == nil || total == 0 {
		return func() {}
	}
	show, every := p.line(total), 2*time.Second
	if p.Terminal {
		show, every = p.bar(total), 100*time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if n, err := count(ctx); err == nil {
				show(n)
			}
		}
	})
	return func() {
		cancel()
		showing.Wait()
		if p.Terminal {
			show(total) // a full bar removes itself
		}
	}
}

func (p Progress) bar(total int) func(n int) {
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(p.Out),
		progressbar.OptionSetDescription("effects"),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(40),
		progressbar.OptionClearOnFinish(),
	)
	return func(n int) { _ = bar.Set(min(n, total)) } // the demo does not need the bar
}

func (p Progress) line(total int) func(n int) {
	return func(n int) { fmt.Fprintf(p.Out, "%d of %d effects\n", min(n, total), total) }
}
