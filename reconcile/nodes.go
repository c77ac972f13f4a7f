package reconcile

import (
	"slices"
)

// nodes is a list of nodes (sets of ids, see tree.go). No id belongs to more than one
// of these nodes.
type nodes struct {
	list []node
	n    uint64 // number of this side's ids in all nodes
	most uint32 // number of this side's ids in the largest node

	known map[node]bool
	depth map[int64][]uint8 // depths of the nodes of each cell
}

func (s *nodes) add(n node, ids uint32) {
	if s.known == nil {
		s.known, s.depth = map[node]bool{}, map[int64][]uint8{}
	}
	s.list = append(s.list, n)
	s.known[n] = true
	if depths := s.depth[n.cell]; !slices.Contains(depths, n.depth) {
		s.depth[n.cell] = append(depths, n.depth)
	}
	s.n += uint64(ids)
	s.most = max(s.most, ids)
}

// find returns the node that contains k, or false if no node contains it.
func (s *nodes) find(k key) (node, bool) {
	for _, depth := range s.depth[k.cell] {
		if n := (node{k.cell, depth, first(k.path, depth)}); s.known[n] {
			return n, true
		}
	}
	return node{}, false
}

// differences returns the nodes whose checksums differ between two trees. Every group
// of the parameter theirs must also be in the parameter ours. A group that is missing
// in theirs counts as a group without ids.
func differences(ours, theirs *tree) *nodes {
	s := &nodes{}
	for g := range ours.all {
		other := theirs.group(g.node)
		for i, c := range g.children {
			if other == nil && c.n > 0 || other != nil && c.sum != other.children[i].sum {
				s.add(g.child(i), c.n)
			}
		}
	}
	return s
}

// divided returns a tree in which every node of s is a group with 1<<width children.
func (s *nodes) divided(width uint8) *tree {
	t := newTree()
	for _, n := range s.list {
		t.put(newGroup(n, width))
	}
	return t
}
