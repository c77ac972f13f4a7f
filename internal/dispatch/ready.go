package dispatch

import (
	"container/heap"
	"slices"
)

// ready contains the messages that may be published. The messages of each topic are
// ordered by position.
type ready struct {
	topics map[string]*messageHeap
	count  int
}

func newReady() ready { return ready{topics: map[string]*messageHeap{}} }

func (r *ready) put(m *Message) {
	h := r.topics[m.Topic]
	if h == nil {
		h = &messageHeap{}
		r.topics[m.Topic] = h
	}
	heap.Push(h, m)
	r.count++
}

// take removes and returns the message with the lowest position. It considers only
// topics for which may(topic) is true. It returns nil if these topics have no message.
func (r *ready) take(may func(topic string) bool) *Message {
	var best *messageHeap
	for topic, h := range r.topics {
		if (best == nil || (*h)[0].Position < (*best)[0].Position) && may(topic) {
			best = h
		}
	}
	if best == nil {
		return nil
	}
	m := heap.Pop(best).(*Message) //nolint:forcetypeassert // messageHeap contains nothing else
	if len(*best) == 0 {
		delete(r.topics, m.Topic)
	}
	r.count--
	return m
}

func (r *ready) removeSlots(slots map[int64]bool) {
	for topic, h := range r.topics {
		before := len(*h)
		*h = slices.DeleteFunc(*h, func(m *Message) bool { return slots[m.Slot] })
		r.count -= before - len(*h)
		heap.Init(h)
		if len(*h) == 0 {
			delete(r.topics, topic)
		}
	}
}

type messageHeap []*Message

func (h messageHeap) Len() int           { return len(h) }
func (h messageHeap) Less(i, j int) bool { return h[i].Position < h[j].Position }
func (h messageHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *messageHeap) Push(x any)        { *h = append(*h, x.(*Message)) } //nolint:forcetypeassert // see take
func (h *messageHeap) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return m
}
