package dispatch

import (
	"cmp"
	"time"
)

// Commands is the work to start now. Publish and Notices are valid until the next Step.
type Commands struct {
	Read    *Read       // may be nil; report the result with RowsRead or ReadFailed
	Publish []Publish   // report each outcome with Published
	Settle  *Settlement // may be nil; report the result with Settled
	Notices []Notice    // for the log and the instruments

	// Write asks for a transaction of the forwarder, reported with Wrote: the cursor cannot pass the
	// rows of the last sweep, which were all paused, before one has ended.
	Write bool

	// Drained means that all publishes, reads and settlements have ended after Stop, Expired that
	// the time for waiting is over.
	Drained, Expired bool

	WakeAt time.Time
}

// Publish is the command to publish a message. Each attempt has its own ticket.
type Publish struct {
	Message *Message
	Ticket  uint64
}

// Read is the command to read rows of the outbox. Only rows of Slots are read. Except with State, there
// are three kinds of read:
//
//   - A sweep returns the rows above From in the order of their positions. It also
//     returns rows at any position whose due time has come.
//   - A refill returns the rows of Keys above From.
//   - A lookahead examines Examine rows above From. It returns the rows that do not
//     belong to one of Groups.
//
// No read returns the rows in Known, or rows that wait behind the head of a blocked key.
type Read struct {
	Refill    bool
	Lookahead bool
	State     bool // return no rows, only Reach.Pauses
	Tidy      bool // before the read, unblock the keys whose head was deleted
	Poll      bool // the sweep is due only because time has passed, without a hint; it often finds no row

	From  int64
	Known []int64 // positions of the messages in memory
	Slots []int64

	Limit int // maximum number of rows
	Bytes int // stop after this number of bytes of payload and metadata

	Keys   []string // sweep and lookahead: keys to leave out; refill: keys to read
	Topics []string // topics to leave out; this does not apply to rows with a key

	// Pauses are the paused topics and tenants, and, except in a refill, the held topics. A sweep
	// and a refill return a paused row only if it has a key and no due time, and without its
	// contents (Message.Paused). A lookahead returns none.
	Pauses Pauses

	Examine  int     // lookahead: number of rows to examine
	Late     int64   // lookahead: return no row whose key has another row above Late and up to From
	Passed   int64   // lookahead: Reach.Skipped also contains each key's first row above Late and up to Passed
	Groups   []Group // lookahead: groups whose rows are left out
	PerGroup int     // lookahead: maximum number of rows of each group

	epoch   int
	round   bool // lookahead: true if it belongs to the round, false if it belongs to the tail
	settled sight
	refills []queueEpoch
}

type queueEpoch struct {
	queue *keyQueue
	epoch int
}

// Reach returns which part of the outbox a read covered. rows has the rows that were due first,
// then the others in the order of their positions. full says whether the read stopped at
// Read.Bytes.
func (r *Read) Reach(rows []*Message, full bool) Reach {
	byPosition := 0
	var highest int64
	for _, m := range rows {
		if !m.Due {
			byPosition++
			highest = m.Position
		}
	}
	switch {
	case full && byPosition == 0:
		return Reach{Covered: r.From}
	case full || byPosition >= r.Limit:
		return Reach{Highest: highest, Covered: highest}
	}
	return Reach{Highest: highest, Covered: Everything}
}

// Settlement is the command to record outcomes in the database.
type Settlement struct {
	Confirmed []*Message // rows to delete
	Charges   []Charge
	Deaths    []Death

	seen Sight
}

func (s *Settlement) empty() bool {
	return len(s.Confirmed) == 0 && len(s.Charges) == 0 && len(s.Deaths) == 0
}

// Charge postpones a message by Delay. The message blocks its ordering key during this time.
type Charge struct {
	Message         *Message
	Attempts        int // attempts to count: 1 for a refusal, otherwise 0
	Delay           time.Duration
	Err             error
	Cause           Outcome // Refused or Unknown
	SuccessorsAfter int64   // all successors of the message are above this position
}

// Death is the command to make a message a dead letter.
type Death struct {
	Message         *Message
	Metadata        []byte // metadata of the message
	Size            int
	Err             error
	Exhausted       bool  // the message was refused too often; if false, it is unacceptable
	SuccessorsAfter int64 // all successors of the message are above this position
}

// Settled is the result of a Settlement. Failed parts are repeated in a later one.
type Settled struct {
	Confirmed bool
	Stays     []int64 // positions of confirmed messages whose rows the database has kept
	StaysErr  error   // says why, if Stays is not empty
	Charges   bool
	Deaths    int   // how many deaths were recorded, from the beginning of the list
	Vanished  bool  // some rows did not exist any more, or their slots belong to another instance
	Wrote     bool  // a transaction that changed something has certainly ended
	Err       error // error of the part that failed, or nil
}

// Message is a row of the outbox in memory. The caller fills the exported fields, and does not
// change them later. The Scheduler sets Payload and Metadata to nil when it no longer needs them.
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

	// Created is by the clock of the database. Since is the earliest time at which the message
	// could be sent, by the clock of this process. The Scheduler uses neither.
	Created string
	Since   time.Time

	// BlocksKey means that the table of blocked keys names this row as the head of its key. Later
	// rows of the key, with positions above SuccessorsAfter, wait for it. Otherwise SuccessorsAfter
	// is 0.
	BlocksKey       bool
	SuccessorsAfter int64

	// Paused: the row has a key, but no content, and must not be sent.
	Paused bool

	// WasUnknown is set by the Scheduler if an earlier publish had an unknown outcome.
	WasUnknown bool

	queue   *keyQueue // nil if the message has no key, or is confirmed
	ticket  uint64    // ticket of the publish in flight, or 0
	decided bool      // the outcome is known, but not recorded yet
	stays   bool      // the message is confirmed, but its row cannot be deleted
	orphan  bool      // this instance has lost the slot of the message
	ahead   bool      // a lookahead has found the message

	candidate    bool
	failedAlone  int    // how often a publish of the message had an unknown outcome while no other message was in flight
	confirmsThen uint64 // the number of confirms of the Scheduler when the field failedAlone was last increased
	failedAt     time.Time
}

// Size returns the size of payload and metadata, in bytes.
func (m *Message) Size() int { return len(m.Payload) + len(m.Metadata) }

// successorsAfter returns a position below all later messages of the key, perhaps below that of m,
// because one that was committed late may have a lower position.
func (m *Message) successorsAfter() int64 {
	if m.queue == nil {
		return m.Position
	}
	return m.queue.refillFrom
}

func (m *Message) group() Group { return Group{m.Topic, m.Tenant} }

func byPosition(a, b *Message) int { return cmp.Compare(a.Position, b.Position) }
