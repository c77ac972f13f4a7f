package reconcile

import (
	"math/bits"
)

// summary is a tree whose method add also adds the cell of an id, if the tree does not
// contain the cell yet.
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

// fold merges parts of the tree and returns the tree. Afterwards a checksum covers
// about leafIDs ids, or more if the tree is large.
func (s summary) fold() *tree {
	target := max(leafIDs, s.n/leaves)
	for g := range s.all {
		g.fold(uint8(bits.Len64(g.n / target)))
	}
	return s.tree
}
