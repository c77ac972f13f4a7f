package demo

import (
	"context"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
)

// clear does what an operator would do. It repairs the handlers, replays each failed
// message once, and discards the malformed messages. It returns how many messages it
// has replayed or discarded. If the demo injects no faults, clear does nothing, because
// then it does not know why a message has failed.
func (d *Demo) clear(ctx context.Context) (cleared int, err error) {
	d.left = 0
	for _, s := range d.Audit.Stores {
		n, err := d.clearOne(ctx, s)
		if err != nil {
			return 0, err
		}
		cleared += n
	}
	return cleared, nil
}

// clearOne clears the quarantine of one service.
func (d *Demo) clearOne(ctx context.Context, s Store) (cleared int, err error) {
	entries, err := s.quarantined(ctx)
	if err != nil {
		return 0, err
	}
	var replay, discard []int64
	for _, e := range entries {
		again := slices.ContainsFunc(d.replayed, func(r quarantine.Entry) bool {
			return r.Consumer == e.Consumer && r.MessageID == e.MessageID
		})
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
		act := operate.Act{Actor: "demo", Why: "the message is malformed"}
		if err := s.Quarantine.Discard(ctx, act, discard...); err != nil {
			return 0, err
		}
		d.disposed += len(discard)
	}
	if len(replay) > 0 {
		d.Faults.repair()
		if err := s.Quarantine.Replay(ctx, operate.Act{Actor: "demo", Why: "the handler is repaired"}, replay...); err != nil {
			return 0, err
		}
	}
	return len(replay) + len(discard), nil
}

// quarantined returns the entries of all quarantines.
func (d *Demo) quarantined(ctx context.Context) (all []quarantine.Entry, err error) {
	for _, s := range d.Audit.Stores {
		entries, err := s.quarantined(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	return all, nil
}

func (s Store) quarantined(ctx context.Context) (all []quarantine.Entry, err error) {
	for f := (operate.Filter{}); ; {
		page, err := s.Quarantine.List(ctx, f)
		all = append(all, page.Rows...)
		if f.AfterID = page.Next; err != nil || page.Next == 0 {
			return all, err
		}
	}
}

// replayable reports whether another attempt can succeed. It returns false for a
// malformed message.
func replayable(e quarantine.Entry) bool {
	switch e.Reason {
	case poison.ReasonPermanent, poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable:
		return false
	}
	return true
}
