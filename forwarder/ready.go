package forwarder

import (
	"container/heap"
	"slices"
)

// ready is the rows that may be published, by topic and position.
type ready struct {
	topics map[string]*rowHeap
	count  int
}

func (q *ready) put(r *row) {
	h := q.topics[r.topic]
	if h == nil {
		h = &rowHeap{}
		q.topics[r.topic] = h
	}
	heap.Push(h, r)
	q.count++
}

// take returns the first row of a topic that may be taken from, or nil.
func (q *ready) take(may func(topic string) bool) *row {
	var best *rowHeap
	for topic, h := range q.topics {
		if (best == nil || (*h)[0].position < (*best)[0].position) && may(topic) {
			best = h
		}
	}
	if best == nil {
		return nil
	}
	r := heap.Pop(best).(*row) //nolint:forcetypeassert // nothing else is in it
	if len(*best) == 0 {
		delete(q.topics, r.topic)
	}
	q.count--
	return r
}

// drop removes the rows of slots.
func (q *ready) drop(slots map[int64]bool) {
	for topic, h := range q.topics {
		before := len(*h)
		*h = slices.DeleteFunc(*h, func(r *row) bool { return slots[r.slot] })
		q.count -= before - len(*h)
		heap.Init(h)
		if len(*h) == 0 {
			delete(q.topics, topic)
		}
	}
}

type rowHeap []*row

func (h rowHeap) Len() int           { return len(h) }
func (h rowHeap) Less(i, j int) bool { return h[i].position < h[j].position }
func (h rowHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *rowHeap) Push(x any)        { *h = append(*h, x.(*row)) } //nolint:forcetypeassert // see take
func (h *rowHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}
