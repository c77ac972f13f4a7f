package reconcile

import (
	"encoding/binary"
)

// State is what a consumer has of a message.
type State uint8

// The states of a message at its consumer.
const (
	Handled     State = iota // in the inbox
	Waiting                  // parked: waits for its next attempt, or behind its ordering key
	Quarantined              // in quarantine
	Discarded                // discarded by an operator
	states
)

// entry is an id that the consumer has.
type entry struct {
	id    string
	state State
	at    int64 // when it was handled or parked, in Unix milliseconds
}

// list is all ids that the consumer has of a node.
type list struct {
	node

	entries []entry
}

func appendNode(b []byte, n node, before int64) []byte {
	b = binary.AppendUvarint(b, uint64(n.cell-before))
	b = append(b, n.depth)
	return binary.AppendUvarint(b, n.path)
}

// encodeTree returns the groups of a tree with their sums.
func encodeTree(t *tree) []byte {
	var b []byte
	before := noTime
	for g := range t.all {
		b = appendNode(b, g.node, before)
		before = g.cell
		b = append(b, g.bits)
		b = binary.AppendUvarint(b, g.n)
		for _, c := range g.children {
			b = binary.LittleEndian.AppendUint64(b, c.sum)
		}
	}
	return b
}

func encodeLists(lists []list) []byte {
	var b []byte
	before := noTime
	for _, l := range lists {
		b = appendNode(b, l.node, before)
		before = l.cell
		b = binary.AppendUvarint(b, uint64(len(l.entries)))
		for _, e := range l.entries {
			uuid, ok := packed([]byte(e.id))
			if ok {
				b = append(append(b, byte(e.state)), uuid[:]...)
			} else {
				b = binary.AppendUvarint(append(b, byte(e.state)|asText), uint64(len(e.id)))
				b = append(b, e.id...)
			}
			b = binary.AppendVarint(b, e.at-l.start())
		}
	}
	return b
}

// asText marks an id that is no UUID.
const asText = 0x80

func (n node) start() int64 { return max(0, n.cell) * cellWidth }
