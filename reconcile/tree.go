package reconcile

import (
	"cmp"
	"maps"
	"slices"
)

// node is a set of ids. It contains those ids of one cell (minute) whose paths (hashes)
// begin with the same bits.
type node struct {
	cell  int64
	depth uint8 // number of bits with which all these paths begin
	path  uint64
}

func compareNodes(a, b node) int {
	return cmp.Or(cmp.Compare(a.cell, b.cell), cmp.Compare(a.depth, b.depth), cmp.Compare(a.path, b.path))
}

const maxDepth = 60

// child is one part of a group.
type child struct {
	sum uint64
	n   uint32 // number of ids; it is not sent to the other side
}

// group is a node that is divided into 1<<bits children.
type group struct {
	node

	bits     uint8
	n        uint64 // number of ids
	children []child
}

func newGroup(n node, width uint8) *group {
	width = min(width, maxDepth-n.depth)
	return &group{node: n, bits: width, children: make([]child, 1<<width)}
}

func (g *group) child(i int) node {
	return node{g.cell, g.depth + g.bits, g.path<<g.bits | uint64(i)}
}

// fold merges the children of the group until 1<<width children are left.
func (g *group) fold(width uint8) {
	for ; g.bits > width; g.bits-- {
		for i := range len(g.children) / 2 {
			a, b := g.children[2*i], g.children[2*i+1]
			g.children[i] = child{a.sum + b.sum, a.n + b.n}
		}
		g.children = g.children[:len(g.children)/2]
	}
}

// tree is a set of groups. All groups of a cell have the same depth.
type tree struct {
	cells map[int64]*branches
	n     uint64 // number of ids
}

type branches struct {
	depth  uint8
	groups map[uint64]*group // groups by their path
}

func newTree() *tree { return &tree{cells: map[int64]*branches{}} }

// put adds a group. It returns false if the cell has groups of another depth, or already
// contains this group.
func (t *tree) put(g *group) bool {
	b := t.cells[g.cell]
	if b == nil {
		b = &branches{g.depth, map[uint64]*group{}}
		t.cells[g.cell] = b
	}
	if b.depth != g.depth || b.groups[g.path] != nil {
		return false
	}
	b.groups[g.path] = g
	t.n += g.n
	return true
}

// add adds an id to the group to which it belongs. If the tree has no such group, add
// does nothing.
func (t *tree) add(k key) {
	b := t.cells[k.cell]
	if b == nil {
		return
	}
	g := b.groups[first(k.path, b.depth)]
	if g == nil {
		return
	}
	c := &g.children[first(k.path<<g.depth, g.bits)]
	c.sum += k.sum
	c.n++
	g.n++
	t.n++
}

// first returns the first n bits of path.
func first(path uint64, n uint8) uint64 { return path >> (64 - n) } // a shift by 64 gives 0

// empty returns a tree with the same groups, but without ids.
func (t *tree) empty() *tree {
	e := newTree()
	for g := range t.all {
		e.put(newGroup(g.node, g.bits))
	}
	return e
}

// all yields the groups in the order of their nodes.
func (t *tree) all(yield func(*group) bool) {
	for _, cell := range slices.Sorted(maps.Keys(t.cells)) {
		b := t.cells[cell]
		for _, path := range slices.Sorted(maps.Keys(b.groups)) {
			if !yield(b.groups[path]) {
				return
			}
		}
	}
}

func (t *tree) group(n node) *group {
	if b := t.cells[n.cell]; b != nil && b.depth == n.depth {
		return b.groups[n.path]
	}
	return nil
}

const (
	// widest and widestNoTime are numbers of bits. A scan divides the ids of a minute into
	// 1<<widest parts, and the ids without a time into 1<<widestNoTime parts.
	widest       = 6
	widestNoTime = 16

	// leafIDs is the number of ids that share a checksum in a summary. The constant leaves
	// is approximately the maximum number of checksums in a summary.
	leafIDs = 512
	leaves  = 20_000
)
