package demo

import (
	"context"
	"slices"

	"github.com/watermill-once/once/poison"
)

// clear does what an operator would do. It repairs the handlers, replays each message
// that has failed once, and discards the malformed messages. It returns how many
// messages it has replayed or discarded. Without faults it does nothing, because it
// does not know why a message has failed.
func (d *Demo) clear(ctx context.Context) (cleared int, err error) {
	entries, err := d.quarantined(ctx)
	if err != nil {
		return 0, err
	}
	var replay, discard []int64
	d.left = 0
	for _, e := range entries {
		again := slices.ContainsFunc(d.replayed, func(r poison.Entry) bool { return r.ID == e.ID })
		switch {
		case d.Faults == nil, again:
			d.left++
		case replayable(e):
			replay = append(replay, e.ID)
			d.replayed = append(d.replayed, e)
		default:
			discard = append(discard, e.ID)
		}
	}
	if len(discard) > 0 {
		act := poison.Act{Actor: "demo", Why: "the message is malformed"}
		if err := d.Quarantine.Discard(ctx, act, discard...); err != nil {
			return 0, err
		}
		d.disposed += len(discard)
	}
	if len(replay) > 0 {
		d.Faults.repair()
		if err := d.Quarantine.Replay(ctx, poison.Act{Actor: "demo", Why: "the handler is repaired"}, replay...); err != nil {
			return 0, err
		}
	}
	return len(replay) + len(discard), nil
}

// quarantined returns all entries of the quarantine.
func (d *Demo) quarantined(ctx context.Context) ([]poison.Entry, error) {
	var all []poison.Entry
	for after := int64(0); ; {
		page, err := d.Quarantine.List(ctx, poison.Filter{AfterID: after})
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
		after = page[len(page)-1].ID
	}
}

// replayable reports whether another attempt can succeed. For a malformed message it
// cannot.
func replayable(e poison.Entry) bool {
	switch e.Reason {
	case poison.ReasonPermanent, poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable:
		return false
	}
	return true
}
