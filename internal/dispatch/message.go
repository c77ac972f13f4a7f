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
	Tenant   string // of the metadata, or ""
	Key      string // the ordering key, or ""
	KeyHash  int64  // lookahead only: a hash of Key
	Slot     int64
	Payload  []byte
	Metadata []byte // a JSON object
	Attempts int
	Due      bool // the row was found by its due time, not by its position

	// Created is the stamp of the time at which the row was stored, by the clock of
	// the database. Since is when the message was first to be sent, by the clock of
	// this process. The Scheduler does not use them.
	Created string
	Since   time.Time

	// BlocksKey reports that the table of blocked keys names this row as the
	// head of its key. Its successors are above SuccessorsAfter.
	BlocksKey       bool
	SuccessorsAfter int64

	// Paused reports that the row has a key and is paused. Then Payload and Metadata
	// are missing, and the row is not to be sent.
	Paused bool

	// WasUnknown reports that a publish of the message had an unknown outcome. The
	// Scheduler sets this field.
	WasUnknown bool

	queue   *keyQueue // nil if the message has no key, or is confirmed
	ticket  uint64    // ticket of the publish in flight, or 0
	decided bool      // the outcome is known and waits to be recorded
	orphan  bool      // another instance may own the slot
	ahead   bool      // a lookahead has found it

	candidate    bool
	failedAlone  int    // how often the outcome was unknown while this was the only message in flight
	confirmsThen uint64 // Scheduler.confirms when that happened last
	failedAt     time.Time
}

// Size returns the bytes of the payload and the metadata.
func (m *Message) Size() int { return len(m.Payload) + len(m.Metadata) }

// successorsAfter returns the position above which the later messages of the key are.
// It can be below the position of m, because a later message may have a lower position
// if it was committed late.
func (m *Message) successorsAfter() int64 {
	if m.queue == nil {
		return m.Position
	}
	return m.queue.refillFrom
}

func (m *Message) group() Group { return Group{m.Topic, m.Tenant} }

func byPosition(a, b *Message) int { return cmp.Compare(a.Position, b.Position) }
