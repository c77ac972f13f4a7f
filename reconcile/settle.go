package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// ask compares the ids of the sender with the groups of the consumer, which are in the
// parameter theirs. For the nodes that differ, it returns smaller groups of the sender.
// If nothing differs any more, it returns an empty tree.
func ask(ctx context.Context, s source, w window, theirs *tree) (*tree, error) {
	ours := theirs.empty()
	if err := fill(ctx, s, w, ours); err != nil {
		return nil, err
	}
	t := differences(ours, theirs).divided(finer)
	return t, fill(ctx, s, w, t)
}

// outcome contains the differences between the ids of the sender and the ids of one
// consumer.
type outcome struct {
	missing  []record // ids that only the sender has
	phantoms []entry  // ids that only the consumer has
}

// settle compares the lists of the consumer with the ids of the sender.
func settle(ctx context.Context, s source, w window, lists []list, limit int) (outcome, error) {
	d := &nodes{}
	theirs := map[string]entry{}
	for _, l := range lists {
		d.add(l.node, 0)
		for _, e := range l.entries {
			theirs[e.id] = e
		}
	}
	var found outcome
	err := collect(ctx, s, w, d, func(_ node, k key, r *record) error {
		if _, ok := theirs[string(r.id)]; ok {
			delete(theirs, string(r.id))
			return nil
		}
		if !w.has(k, r.in) {
			return nil
		}
		if len(found.missing) == limit {
			return fmt.Errorf("more than %d messages have not arrived: %w", limit, ErrTooDifferent)
		}
		missing := *r
		missing.id = slices.Clone(r.id)
		found.missing = append(found.missing, missing)
		return nil
	})
	if err != nil {
		return outcome{}, err
	}
	for _, e := range theirs {
		if k := keyOf([]byte(e.id)); w.has(k, w.contains(e.at)) {
			found.phantoms = append(found.phantoms, e)
		}
	}
	slices.SortFunc(found.phantoms, func(a, b entry) int { return strings.Compare(a.id, b.id) })
	return found, nil
}
