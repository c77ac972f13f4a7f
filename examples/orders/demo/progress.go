package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how many of the effects there are: as a bar on a terminal,
// else as a line now and then.
type Progress struct {
	Out      io.Writer // nil for nothing
	Terminal bool
}

// start shows what count returns until the function that it returns is called.
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
			show(total) // and with that it goes
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
	return func(n int) { _ = bar.Set(min(n, total)) } // a bar that cannot be drawn is no loss
}

func (p Progress) line(total int) func(n int) {
	return func(n int) { fmt.Fprintf(p.Out, "%d of %d effects\n", min(n, total), total) }
}
