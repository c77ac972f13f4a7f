package forwarder

import (
	"cmp"
	"time"
)

// row is a message in memory. What came from the table does not change; the
// rest belongs to the loop.
type row struct {
	position int64
	id       string
	topic    string
	key      string // "" is none
	slot     int64
	payload  []byte
	metadata []byte // a JSON object
	attempts int
	due      bool // found by its due time

	heldByItself    bool  // a hold in the table names it as the head of its key
	successorsAfter int64 // if so, the position above which its successors lie

	lane   *lane  // nil without a key
	ticket uint64 // of the publish that is under way; 0 if none is
	sent   time.Time
	final  bool // its outcome is known and waits to be settled
	orphan bool // of a slot that was lost

	suspect      bool
	failedAlone  int    // times that its outcome was unknown when it was published alone
	confirmsThen uint64 // confirms of others when that happened last
	failedAt     time.Time
	unknown      bool // its outcome was unknown at some time
}

func (r *row) size() int { return len(r.payload) + len(r.metadata) }

// successors is the position above which its successors lie that were not
// confirmed, when its outcome is known: one that is committed late may lie below
// it.
func (r *row) successors() int64 {
	if r.lane == nil {
		return r.position
	}
	return r.lane.from
}

func byPosition(a, b *row) int { return cmp.Compare(a.position, b.position) }
