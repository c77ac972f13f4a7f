package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTooDifferent means that too many ids differ, or may differ. The two sides probably
// do not belong together.
var ErrTooDifferent = errors.New("the two sides are too different")

const (
	// listAtOnce is the maximum number of ids that a consumer lists while it can still
	// divide the nodes (sets of ids). If it would have to list more ids, it sends the
	// checksums of smaller nodes instead.
	listAtOnce = 20_000

	// smallest is the maximum number of ids in a node that need not be divided further. If
	// no node with differences has more ids, the consumer lists the ids, even if they are
	// more than listAtOnce.
	smallest = 8

	// finer is the number of bits of a division: each round divides a node into 1<<finer
	// smaller nodes.
	finer = 4

	// mostRounds is the maximum number of questions. It stops a comparison that makes no
	// progress.
	mostRounds = 20
)

// record describes the rows with one id in the tables of one side, which is the sender
// or the receiver.
type record struct {
	id []byte // valid until the next record
	in bool   // whether the time of a row with this id is in the window

	// These fields are set only if source.scan was called with details. A sender has
	// several rows with the same id if the message was sent again.
	firstAt, lastAt int64 // times of the first and the last row with this id, in Unix milliseconds
	state           State
	log             int64 // ID of the latest row in the sent log
	topic           string
}

// source reads the ids of one side.
type source interface {
	// scan calls the function each, once for every id of the side, in any order. It may
	// leave out ids outside of spans. If details is false, it may also leave out ids
	// outside of the window.
	scan(ctx context.Context, w window, spans []span, details bool, each func(*record) error) error
}

// keyPrefix is the prefix of business keys in the inbox, see dedup.Config.Key. Ids with
// this prefix are left out of the comparison.
const keyPrefix = "key:"

// each calls the function do for each id of s that takes part in the comparison.
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

// summarize returns the tree for the first question of a comparison. It contains all
// ids of s in the window.
func summarize(ctx context.Context, s source, w window) (*tree, error) {
	t := summary{newTree()}
	err := each(ctx, s, w, nil, t.add)
	return t.fold(), err
}

// fill adds the ids of s to t.
func fill(ctx context.Context, s source, w window, t *tree) error {
	if len(t.cells) == 0 {
		return nil
	}
	return each(ctx, s, w, spansOf(t), t.add)
}

// limits says how many ids a consumer may list in an answer. If it would have to list
// more than atOnce ids, it answers with the checksums of smaller nodes instead, as long
// as the nodes can be divided. If it would then still have to list more than total ids,
// the comparison fails.
type limits struct{ atOnce, total int }

// reply is the answer of a consumer. It contains either lists of ids, or the checksums
// of smaller parts of the tree than those in the question.
type reply struct {
	groups *tree
	lists  []list
	hours  map[int64]uint64 // number of ids of each hour; set only in the first round
}

// respond compares the groups of the sender, in the parameter theirs, with the ids of
// s, and returns the answer.
func respond(ctx context.Context, s source, w window, theirs *tree, firstRound bool, most limits) (reply, error) {
	for cell := range theirs.cells { // leave out cells that the consumer may have forgotten
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

// enumerate lists the ids of the nodes, including ids outside of the window.
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

// collect calls the function do for each id that belongs to one of the nodes.
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
