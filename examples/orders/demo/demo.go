package demo

import (
	"context"
	"time"

	"github.com/watermill-once/once/operate/quarantine"
)

// Demo is one run of the demo. It places orders, waits until they are handled, clears
// the quarantine, and audits the tables.
type Demo struct {
	URL      string   // address of the service orders
	Orders   int      // number of orders to place
	Faults   *Faults  // nil means that no faults are injected
	Audit    Audit    // counts in the tables
	Wire     Wire     // counts messages in the queues, and sends malformed messages
	Progress Progress // shows the number of effects

	load     *load
	begun    time.Time
	replayed []quarantine.Entry
	disposed int   // number of entries that the demo has discarded
	left     int   // number of entries that the demo has left in quarantine
	cut      error // why the run ended before all orders were handled
}

// Run runs the demo without the audit. It returns nil if ctx ends, because the report
// names the missing effects.
func (d *Demo) Run(ctx context.Context) error {
	d.begun = time.Now()
	d.load = newLoad(d.URL, d.Faults)
	err := d.run(ctx)
	if ctx.Err() != nil {
		d.cut = context.Cause(ctx)
		return nil //nolint:nilerr // the report names the reason
	}
	return err
}

func (d *Demo) run(ctx context.Context) error {
	before, err := d.Audit.progress(ctx)
	if err != nil {
		return err
	}
	// The service handles the first orders while the demo places more, so show the
	// progress from now on.
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

// effectsPerOrder is the number of effects of an order that is shipped: payment,
// reservation, shipment, revenue, mail, status, and three entries in the history. An
// order that is cancelled has one effect more.
const effectsPerOrder = 9
