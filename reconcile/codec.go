package reconcile

import (
	"encoding/binary"
)

// State says what a consumer has done with a message.
type State uint8

// States of a message at its consumer.
const (
	Handled     State = iota // the inbox contains the message
	Waiting                  // parked; the message waits for its next attempt, or behind another message of its ordering key
	Quarantined              // in quarantine
	Discarded                // discarded by an operator
	states
)

// entry is an id that the consumer knows, and what the consumer has done with the
// message.
type entry struct {
	id    string
	state State
	at    int64 // time at which the message was handled or parked, in Unix milliseconds
}

// list contains the ids in one node (a set of ids, see tree.go), as far as the consumer
// knows them.
type list struct {
	node

	entries []entry
}

func appendNode(b []byte, n node, before int64) []byte {
	b = binary.AppendUvarint(b, uint64(n.cell-before))
	b = append(b, n.depth)
	return binary.AppendUvarint(b, n.path)
}

// encodeTree encodes the groups of a tree, with their checksums, as bytes.
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

// asText is a bit in the byte before an id. It is set if the id is stored as text,
// because it is not a UUID in lower case.
const asText = 0x80

func (n node) start() int64 { return max(0, n.cell) * cellWidth }
