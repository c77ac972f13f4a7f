package reconcile

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var errDamaged = errors.New("the data is damaged")

// decoder reads the output of encodeTree and encodeLists. After an error, every read
// returns 0.
type decoder struct {
	left   []byte
	err    error
	before int64
}

func (d *decoder) more() bool { return d.err == nil && len(d.left) > 0 }

func (d *decoder) failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{errDamaged}, args...)...)
	}
	d.left = nil
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.left)) {
		d.failf("it ends early")
		return nil
	}
	b := d.left[:n]
	d.left = d.left[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.left)
	if n <= 0 {
		d.failf("no number")
		return 0
	}
	d.left = d.left[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.left)
	if n <= 0 {
		d.failf("no number")
		return 0
	}
	d.left = d.left[n:]
	return v
}

// lastCell is the last possible cell (minute since 1970). It contains the latest time
// that an id can contain.
const lastCell = (1<<48 - 1) / cellWidth

func (d *decoder) node() node {
	cell := d.uvarint()
	n := node{depth: d.byte(), path: d.uvarint()}
	if cell > uint64(lastCell-d.before) || n.depth > maxDepth || n.path>>n.depth != 0 {
		d.failf("a node that cannot exist")
		return node{}
	}
	n.cell = d.before + int64(cell)
	d.before = n.cell
	return n
}

func decodeTree(b []byte) (*tree, error) {
	d := &decoder{left: b, before: noTime}
	t := newTree()
	for d.more() {
		n, width := d.node(), d.byte()
		ids := d.uvarint()
		if d.err == nil && (width > widestNoTime || n.depth+width > maxDepth) {
			d.failf("a node with too many parts")
		}
		sums := d.bytes(8 << width)
		if d.err != nil {
			break
		}
		g := newGroup(n, width)
		g.n = ids
		for i := range g.children {
			g.children[i].sum = binary.LittleEndian.Uint64(sums[8*i:])
		}
		if !t.put(g) {
			d.failf("a node appears twice")
		}
	}
	return t, d.err
}

func decodeLists(b []byte) ([]list, error) {
	d := &decoder{left: b, before: noTime}
	var lists []list
	seen := map[node]bool{}
	for d.more() {
		l := list{node: d.node()}
		if seen[l.node] {
			d.failf("a node appears twice")
		}
		seen[l.node] = true
		for n := d.uvarint(); n > 0 && d.err == nil; n-- {
			l.entries = append(l.entries, d.entry(l.node))
		}
		lists = append(lists, l)
	}
	return lists, d.err
}

func (d *decoder) entry(of node) entry {
	kind := d.byte()
	e := entry{state: State(kind &^ asText)}
	if kind&asText != 0 {
		e.id = string(d.bytes(d.uvarint()))
	} else {
		var uuid [16]byte
		copy(uuid[:], d.bytes(uint64(len(uuid))))
		e.id = unpacked(uuid)
	}
	e.at = of.start() + d.varint()
	if d.err == nil && e.state >= states {
		d.failf("state %d does not exist", e.state)
	}
	if k := keyOf([]byte(e.id)); d.err == nil && (k.cell != of.cell || first(k.path, of.depth) != of.path) {
		d.failf("id %q is in the wrong place", e.id)
	}
	return e
}
