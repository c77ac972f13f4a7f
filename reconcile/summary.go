package reconcile

import (
	"math/bits"
)

// summary is a tree that grows by the cells of its ids.
type summary struct{ *tree }

func (s summary) add(k key) {
	if s.cells[k.cell] == nil {
		width := uint8(widest)
		if k.cell == noTime {
			width = widestNoTime
		}
		s.put(newGroup(node{cell: k.cell}, width))
	}
	s.tree.add(k)
}

// fold makes the tree as coarse as it may be.
func (s summary) fold() *tree {
	target := max(leafIDs, s.n/leaves)
	for g := range s.all {
		g.fold(uint8(bits.Len64(g.n / target)))
	}
	return s.tree
}
