package forwarder

import (
	"cmp"
	"container/heap"
	"time"
)

// row is a message in memory. What came from the table does not change; the
// rest belongs to the loop.
type row struct {
	position int64
	id       string
	topic    string
	key      string // "" is none
	payload  []byte
	metadata []byte // a JSON object
	attempts int
	due      bool // found by its due time

	lane   *lane     // nil without a key
	ticket uint64    // of the publish that is under way; 0 if none is
	sentAt time.Time // of the last publish
	final  bool      // its outcome is known and waits to be settled
	orphan bool      // read under a lease that was lost

	suspect      bool
	failedAlone  int    // times that its outcome was unknown when it was published alone
	confirmsThen uint64 // confirms of others when that happened last
	unknown      bool   // its outcome was unknown at some time
}

func (r *row) size() int { return len(r.payload) + len(r.metadata) }

// heldByItself says whether a hold in the table names r as the head of its key.
func (r *row) heldByItself() bool { return r.key != "" && (r.due || r.attempts > 0) }

func byPosition(a, b *row) int { return cmp.Compare(a.position, b.position) }

// queue gives rows back in order of their position.
type queue []*row

func (q *queue) put(r *row) { heap.Push((*rowHeap)(q), r) }

// take returns nil when the queue is empty.
func (q *queue) take() *row {
	if len(*q) == 0 {
		return nil
	}
	return heap.Pop((*rowHeap)(q)).(*row) //nolint:forcetypeassert // nothing else is in it
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
