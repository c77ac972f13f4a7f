package demo

import (
	"context"
	"time"

	"github.com/watermill-once/once/poison"
)

// Demo is one run: orders are placed, everything is waited for, what is in
// quarantine is dealt with, and the books are audited.
type Demo struct {
	URL        string             // the service's
	Orders     int                // to be placed
	Faults     *Faults            // nil for none
	Audit      Audit              // what to count in
	Wire       Wire               // what to count in, and where malformed messages are sent to
	Quarantine *poison.Quarantine // the service's
	Progress   Progress           // told how far it is

	load     *load
	begun    time.Time
	replayed []poison.Entry
	disposed int   // entries that were discarded
	left     int   // entries that were left in quarantine
	cut      error // why it ended before everything was done
}

// Run does all but the audit. That ctx ended is no error: the report will say
// what is missing.
func (d *Demo) Run(ctx context.Context) error {
	d.begun = time.Now()
	d.load = newLoad(d.URL, d.Faults)
	err := d.run(ctx)
	if ctx.Err() != nil {
		d.cut = context.Cause(ctx)
		return nil //nolint:nilerr // the report says it better
	}
	return err
}

func (d *Demo) run(ctx context.Context) error {
	before, err := d.Audit.progress(ctx)
	if err != nil {
		return err
	}
	// The bar moves while orders are placed: they are handled meanwhile.
	end := d.Progress.start(effectsPerOrder*d.Orders, func(ctx context.Context) (int, error) {
		now, err := d.Audit.progress(ctx)
		return now - before, err
	})
	defer end()

	d.load.place(ctx, d.Orders, func() error { return d.Faults.inject(ctx, d.Wire) })
	for {
		if err := d.settle(ctx); err != nil {
			return err
		}
		cleared, err := d.clear(ctx)
		if err != nil || cleared == 0 {
			return err
		}
	}
}

// effectsPerOrder is one for each consumer, and two more in the history.
const effectsPerOrder = 9
