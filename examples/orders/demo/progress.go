package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how many effects there are. On a terminal it shows a bar, and
// elsewhere it writes a line every two seconds.
type Progress struct {
	Out      io.Writer // nil means that nothing is shown
	Terminal bool
}

// start calls the function count again and again, and shows the result. This ends when
// the caller calls end, the returned function.
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
			show(total) // removes the bar, because it is full
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
	return func(n int) { _ = bar.Set(min(n, total)) } // an error does not matter to the demo
}

func (p Progress) line(total int) func(n int) {
	return func(n int) { fmt.Fprintf(p.Out, "%d of %d effects\n", min(n, total), total) }
}
