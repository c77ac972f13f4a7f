package dispatch

import (
	"cmp"
	"time"
)

// Message is a row of the outbox in memory. The caller fills the exported
// fields when it reads the row and never changes them. The Scheduler sets
// Payload and Metadata to nil when the outcome is known.
type Message struct {
	Position int64
	ID       string
	Topic    string
	Key      string // the ordering key, or ""
	Slot     int64
	Payload  []byte
	Metadata []byte // a JSON object
	Attempts int
	Due      bool // the row was found by its due time, not by its position

	// BlocksKey reports that the table of blocked keys names this row as the
	// head of its key. Its successors are above SuccessorsAfter.
	BlocksKey       bool
	SuccessorsAfter int64

	// WasUnknown reports that a publish of the message had an unknown outcome.
	// The Scheduler sets it.
	WasUnknown bool

	queue   *keyQueue // nil without a key, and after a confirm
	ticket  uint64    // of the publish in flight, or 0
	decided bool      // the outcome is known and waits to be recorded
	orphan  bool      // the slot was lost

	suspect      bool
	failedAlone  int    // unknown outcomes while the message was alone in flight
	confirmsThen uint64 // confirms of all messages at the last of them
	failedAt     time.Time
}

// Size returns the bytes of the payload and the metadata.
func (m *Message) Size() int { return len(m.Payload) + len(m.Metadata) }

// successorsAfter returns the position above which the unconfirmed successors
// of m are. It can be below the position of m, because a successor with a lower
// position may be committed late.
func (m *Message) successorsAfter() int64 {
	if m.queue == nil {
		return m.Position
	}
	return m.queue.refillFrom
}

func byPosition(a, b *Message) int { return cmp.Compare(a.Position, b.Position) }
