package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTooDifferent says that so many ids differ, or may differ, that the two sides
// probably do not belong together.
var ErrTooDifferent = errors.New("the two sides are too different")

const (
	// listAtOnce is the number of ids that a consumer lists without asking for
	// smaller nodes first.
	listAtOnce = 20_000

	// smallest is the size of a node that is not divided further.
	smallest = 8

	// finer is the number of bits by which each round divides a node.
	finer = 4

	// mostRounds ends an exchange that makes no progress.
	mostRounds = 20
)

// record is an id that one side has.
type record struct {
	id []byte // until the next record
	in bool   // the time of a row with this id is in the window

	// Only with details. A sender has an id more than once if it was sent again.
	firstAt, lastAt int64 // the times of its rows, in Unix milliseconds
	state           State
	log             int64 // the id of the latest row in the sent log
	topic           string
}

// source reads the ids of one side.
type source interface {
	// scan calls each for every id of the side once, in any order. It may leave out
	// ids outside of spans, and, without details, ids outside of the window.
	scan(ctx context.Context, w window, spans []span, details bool, each func(*record) error) error
}

// keyPrefix is the beginning of business keys in the inbox, see dedup.Config.Key.
// Ids with this beginning are not compared.
const keyPrefix = "key:"

// each scans the ids that are compared.
func each(ctx context.Context, s source, w window, spans []span, do func(k key)) error {
	return s.scan(ctx, w, spans, false, func(r *record) error {
		if strings.HasPrefix(string(r.id), keyPrefix) {
			return nil
		}
		if k := keyOf(r.id); w.has(k, r.in) {
			do(k)
		}
		return nil
	})
}

// summarize returns the tree that begins an exchange.
func summarize(ctx context.Context, s source, w window) (*tree, error) {
	t := summary{newTree()}
	err := each(ctx, s, w, nil, t.add)
	return t.fold(), err
}

// fill adds the ids of s to an empty tree.
func fill(ctx context.Context, s source, w window, t *tree) error {
	if len(t.cells) == 0 {
		return nil
	}
	return each(ctx, s, w, spansOf(t), t.add)
}

// limits bound the ids that a consumer lists: without asking for smaller nodes
// first, and in total.
type limits struct{ atOnce, total int }

// reply is the answer of a consumer: either lists, or groups that are finer than
// those that it was asked about.
type reply struct {
	groups *tree
	lists  []list
	hours  map[int64]uint64 // ids by hour, in the first round
}

// respond compares the groups of the sender with the ids of s.
func respond(ctx context.Context, s source, w window, theirs *tree, firstRound bool, most limits) (reply, error) {
	for cell := range theirs.cells { // the consumer may have forgotten these
		if cell != noTime && !w.has(key{cell: cell}, false) {
			delete(theirs.cells, cell)
		}
	}
	ours := theirs.empty()
	var err error
	if firstRound {
		err = each(ctx, s, w, nil, summary{ours}.add)
	} else {
		err = fill(ctx, s, w, ours)
	}
	if err != nil {
		return reply{}, err
	}
	var r reply
	if firstRound {
		r.hours = hours(ours)
	}
	d := differences(ours, theirs)
	if d.n > uint64(most.atOnce) && d.most > smallest {
		r.groups = d.divided(finer)
		return r, fill(ctx, s, w, r.groups)
	}
	if d.n > uint64(most.total) {
		return reply{}, fmt.Errorf("%d ids would have to be listed, more than %d: %w", d.n, most.total, ErrTooDifferent)
	}
	r.lists, err = enumerate(ctx, s, w, d)
	return r, err
}

// enumerate lists the ids of the nodes, of any time.
func enumerate(ctx context.Context, s source, w window, d *nodes) ([]list, error) {
	byNode := map[node][]entry{}
	err := collect(ctx, s, w, d, func(n node, _ key, r *record) error {
		byNode[n] = append(byNode[n], entry{string(r.id), r.state, r.firstAt})
		return nil
	})
	if err != nil {
		return nil, err
	}
	lists := make([]list, len(d.list))
	for i, n := range d.list {
		lists[i] = list{n, byNode[n]}
	}
	slices.SortFunc(lists, func(a, b list) int { return compareNodes(a.node, b.node) })
	return lists, nil
}

// collect calls do for each id of the nodes.
func collect(ctx context.Context, s source, w window, d *nodes, do func(n node, k key, r *record) error) error {
	if len(d.list) == 0 {
		return nil
	}
	return s.scan(ctx, w, spansOf(d.divided(0)), true, func(r *record) error {
		k := keyOf(r.id)
		if n, ok := d.find(k); ok && !strings.HasPrefix(string(r.id), keyPrefix) {
			return do(n, k, r)
		}
		return nil
	})
}
