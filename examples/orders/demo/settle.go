package demo

import (
	"context"
	"encoding/json"
	"time"

	"github.com/watermill-once/once/operate/quarantine"
)

// settle waits until all messages are handled: the outbox and the queues are empty, no
// message waits for another attempt, and each order has all its effects. Orders with a
// message in quarantine need not have all their effects.
func (d *Demo) settle(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := -1
	for {
		settled, effects, err := d.settled(ctx)
		if err != nil {
			return err
		}
		// Check twice, because a broker does not count the messages that a consumer is
		// handling.
		if settled && effects == last {
			return nil
		}
		last = -1
		if settled {
			last = effects
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// settled reports whether all messages are handled at this moment. It also returns the
// number of effects.
func (d *Demo) settled(ctx context.Context) (yes bool, effects int, err error) {
	waiting, _, err := d.Audit.underWay(ctx)
	if err != nil || waiting > 0 {
		return false, 0, err
	}
	queued, err := d.Wire.Waiting(ctx)
	if err != nil || queued > 0 {
		return false, 0, err
	}
	entries, err := d.quarantined(ctx)
	if err != nil {
		return false, 0, err
	}
	malformed, quarantined := 0, map[string]bool{}
	for _, e := range entries {
		if !replayable(e) {
			malformed++
			continue
		}
		quarantined[orderOf(e)] = true
	}
	if d.Faults != nil && d.disposed+malformed < int(d.Faults.injected.Malformed.Load()) {
		return false, 0, nil
	}
	b, err := d.Audit.read(ctx)
	if err != nil {
		return false, 0, err
	}
	for _, m := range b.missing(d.load.journal) {
		if !quarantined[m.Order] {
			return false, 0, nil
		}
	}
	effects, err = d.Audit.progress(ctx)
	return err == nil, effects, err
}

// orderOf returns the id of the order that a message belongs to, or "" if the message
// names no order.
func orderOf(e quarantine.Entry) string {
	var event struct {
		OrderID string `json:"order_id"`
	}
	if e.Message == nil || json.Unmarshal(e.Message.Payload, &event) != nil {
		return ""
	}
	return event.OrderID
}
