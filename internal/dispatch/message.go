package dispatch

import (
	"cmp"
	"time"
)

// Message is a row of the outbox in memory. The caller fills the exported fields when
// it reads the row, and does not change them later. The Scheduler sets Payload and
// Metadata to nil when it no longer needs them.
type Message struct {
	Position int64
	ID       string
	Topic    string
	Tenant   string // tenant from the metadata, or ""
	Key      string // the ordering key, or ""
	KeyHash  int64  // lookahead only: a hash of Key
	Slot     int64
	Payload  []byte
	Metadata []byte // a JSON object
	Attempts int
	Due      bool // the row was found by its due time, not by its position

	// Created is the time at which the row was stored, by the clock of the database. Since
	// is the earliest time at which the message could be sent, by the clock of this
	// process. The Scheduler does not use these fields.
	Created string
	Since   time.Time

	// BlocksKey means that the table of blocked keys names this row as the head of its key.
	// The later rows of the key then wait for this row, and their positions are above
	// SuccessorsAfter. If BlocksKey is false, SuccessorsAfter is 0.
	BlocksKey       bool
	SuccessorsAfter int64

	// Paused means that the row has a key and is paused. Payload and Metadata are then
	// empty, and the message must not be sent.
	Paused bool

	// WasUnknown means that an earlier publish of the message had an unknown outcome. The
	// Scheduler sets this field.
	WasUnknown bool

	queue   *keyQueue // nil if the message has no key, or is confirmed
	ticket  uint64    // ticket of the publish in flight, or 0
	decided bool      // the outcome is known, but not recorded yet
	orphan  bool      // this instance has lost the slot of the message
	ahead   bool      // a lookahead has found the message

	candidate    bool
	failedAlone  int    // how often a publish of the message had an unknown outcome while no other message was in flight
	confirmsThen uint64 // the number of confirms of the Scheduler when the field failedAlone was last increased
	failedAt     time.Time
}

// Size returns the size of payload and metadata, in bytes.
func (m *Message) Size() int { return len(m.Payload) + len(m.Metadata) }

// successorsAfter returns a position below all later messages of the key. It can also
// be below the position of m, because a later message that was committed late may have
// a lower position than m.
func (m *Message) successorsAfter() int64 {
	if m.queue == nil {
		return m.Position
	}
	return m.queue.refillFrom
}

func (m *Message) group() Group { return Group{m.Topic, m.Tenant} }

func byPosition(a, b *Message) int { return cmp.Compare(a.Position, b.Position) }
