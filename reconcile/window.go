package reconcile

import (
	"time"
)

// window is the time that is compared, in whole minutes. It is the time in an id,
// or, for ids without one, the time of the row.
type window struct{ from, until time.Time }

// has reports whether an id is compared. in says whether the time of its row is in
// the window.
func (w window) has(k key, in bool) bool {
	if k.cell == noTime {
		return in
	}
	return k.cell >= w.from.UnixMilli()/cellWidth && k.cell < w.until.UnixMilli()/cellWidth
}

func (w window) contains(ms int64) bool { return ms >= w.from.UnixMilli() && ms < w.until.UnixMilli() }

// hours returns the number of ids by hour since 1970, or noTime.
func hours(t *tree) map[int64]uint64 {
	n := map[int64]uint64{}
	for g := range t.all {
		hour := g.cell / 60
		if g.cell == noTime {
			hour = noTime
		}
		n[hour] += g.n
	}
	return n
}

// span is a range of cells: from is in it, to is not.
type span struct{ from, to int64 }

// mostSpans is the number of ranges that a query has at most.
const mostSpans = 50

// spansOf returns ranges that contain all cells of a tree, or nil for no bounds.
func spansOf(t *tree) []span {
	var spans []span
	for g := range t.all {
		if g.cell == noTime {
			return nil
		}
		if last := len(spans) - 1; last >= 0 && g.cell <= spans[last].to {
			spans[last].to = g.cell + 1
		} else {
			spans = append(spans, span{g.cell, g.cell + 1})
		}
	}
	if n := len(spans); n > mostSpans {
		return []span{{spans[0].from, spans[n-1].to}}
	}
	return spans
}
