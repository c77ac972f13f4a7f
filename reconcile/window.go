package reconcile

import (
	"time"
)

// window is the compared period, in whole minutes. The time in an id decides whether
// the id is in the window. For an id without a time, the time of its row decides.
type window struct{ from, until time.Time }

// has reports whether an id takes part in the comparison. The parameter in says whether
// the time of the id's row is in the window.
func (w window) has(k key, in bool) bool {
	if k.cell == noTime {
		return in
	}
	return k.cell >= w.from.UnixMilli()/cellWidth && k.cell < w.until.UnixMilli()/cellWidth
}

func (w window) contains(ms int64) bool { return ms >= w.from.UnixMilli() && ms < w.until.UnixMilli() }

// hours returns the number of ids for each hour since 1970. The key noTime contains the
// number of ids without a time.
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

// span is a range of cells. It includes the cell in the field from, and excludes the
// cell in the field to.
type span struct{ from, to int64 }

// mostSpans is the maximum number of spans in a query.
const mostSpans = 50

// spansOf returns spans that contain all cells of a tree. If the tree has a group of
// ids without a time, it returns nil, because such ids can have any text.
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
