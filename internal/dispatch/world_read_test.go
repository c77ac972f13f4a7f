package dispatch

import (
	"cmp"
	"slices"
	"time"
)

// read simulates a Read. It looks at the transactions first, and then at the rows.
func (w *world) read(r *Read) {
	const delay = 20 * time.Millisecond
	process := w.process
	w.later(delay, func() {
		if r.Tidy {
			w.tidy()
		}
		var horizon, ceiling int64
		if !r.Refill {
			horizon, ceiling = w.snapshot()
		}
		w.later(delay/4, func() {
			failed := w.fails()
			rows, at := w.rows(r)
			at.Pauses = w.pauses
			changes := w.changes
			if r.Lookahead {
				rows, at = w.ahead(r)
			}
			at.Horizon, at.Ceiling = horizon, ceiling
			if w.plant.rows != nil {
				w.plant.rows(w, r, &rows, &at)
			}
			w.report(process, delay, func() {
				w.tracef("read: %d rows %+v, failed %t", len(rows), at, failed)
				if failed {
					w.s.ReadFailed(w.now, r, errFailed)
				} else {
					w.s.RowsRead(w.now, r, rows, at)
					w.heeds = w.heeds || changes == w.changes && !r.Refill && !r.Lookahead
				}
			})
		})
	})
}

// rows returns the rows that the queries of package forwarder would return.
func (w *world) rows(r *Read) ([]*Message, Reach) {
	var byDue, byPos []*stored
	var left int64
	for _, row := range w.table {
		switch blocked := w.blocked[row.Key]; {
		case slices.Contains(r.Known, row.Position) || !slices.Contains(r.Slots, row.Slot):
		case blocked != nil && blocked.position != row.Position:
		case r.Refill && !slices.Contains(r.Keys, row.Key):
		case !r.Refill && row.Key != "" && slices.Contains(r.Keys, row.Key):
		case !r.Refill && row.Key == "" && slices.Contains(r.Topics, row.Topic):
		case (row.Key == "" || !row.due.IsZero()) && r.Pauses.Include(row.Topic, row.Tenant):
			left = max(left, row.Position)
		case row.due.IsZero():
			if row.Position > r.From {
				byPos = append(byPos, row)
			}
		case !r.Refill && !row.due.After(w.now):
			byDue = append(byDue, row)
		}
	}
	slices.SortFunc(byPos, func(a, b *stored) int { return cmp.Compare(a.Position, b.Position) })
	slices.SortFunc(byDue, func(a, b *stored) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.Position, b.Position))
	})
	byPos = byPos[:min(len(byPos), r.Limit)]
	byDue = byDue[:min(len(byDue), max(1, r.Limit/2))]
	var (
		found []*Message
		size  int
		full  bool
	)
	for _, row := range append(byDue, byPos...) {
		if full = size >= r.Bytes; full {
			break
		}
		m := row.Message
		m.Due = !row.due.IsZero()
		if b := w.blocked[row.Key]; b != nil {
			m.BlocksKey, m.SuccessorsAfter = true, b.successorsAfter
		}
		if m.Payload = make([]byte, len(row.Payload)); r.Pauses.Include(m.Topic, m.Tenant) {
			m.Paused, m.Payload = true, nil
		}
		size += m.Size()
		found = append(found, &m)
	}
	at := r.Reach(found, full)
	if at.Covered == Everything {
		at.Highest = max(at.Highest, left)
	}
	slices.SortFunc(found, byPosition)
	return found, at
}
