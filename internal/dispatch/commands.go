package dispatch

import "time"

// Commands tells the caller which work to start now. The slices Publish and Notices are
// valid until the next call of Step.
type Commands struct {
	Read    *Read       // may be nil; report the result with RowsRead or ReadFailed
	Publish []Publish   // report each outcome with Published
	Settle  *Settlement // may be nil; report the result with Settled
	Notices []Notice    // for the log and the instruments

	// Drained reports that Stop was called, and that no publish, read or settlement is
	// left to wait for. Expired reports that the time for this is over.
	Drained, Expired bool

	// WakeAt is when to call Step again if no event comes before.
	WakeAt time.Time
}

// Publish is the command to publish a message. Each attempt to publish a message has a
// different ticket.
type Publish struct {
	Message *Message
	Ticket  uint64
}

// Read is the command to read rows of the outbox that belong to Slots.
//
// A sweep returns the rows above From in the order of their positions, and rows that
// are due. A refill returns the rows of Keys above From. A lookahead examines the first
// rows above From, and returns those that are not of one of Groups. None returns the
// rows in Known, or rows that wait behind a blocked key's first message.
type Read struct {
	Refill    bool
	Lookahead bool
	Tidy      bool // first unblock keys whose first message does not exist any more
	Poll      bool // a sweep that nothing but the time has caused, so that it often finds no row

	From  int64
	Known []int64 // positions of messages in memory
	Slots []int64

	Limit int // maximum number of rows
	Bytes int // stop after this many bytes of payload and metadata

	Keys   []string // sweep: keys to leave out; refill: keys to read
	Topics []string // topics to leave out, except for rows with a key

	// Pauses are the topics and tenants that are paused. Of their rows a sweep and a
	// refill return those with a key that have no due time, without contents, see
	// Message.Paused. They and a lookahead leave out all others.
	Pauses Pauses

	Examine  int     // lookahead: number of rows to examine
	Late     int64   // lookahead: return no row of a key that also has a row above Late that is not above From
	Passed   int64   // lookahead: the rows with a key above Late that are not above Passed are skipped rows, too
	Groups   []Group // lookahead: groups to leave out
	PerGroup int     // lookahead: maximum number of rows of a group

	epoch   int
	round   bool // lookahead: of the round, not of the tail
	settled sight
	refills []queueEpoch
}

// queueEpoch is a queue, and its epoch when a refill began.
type queueEpoch struct {
	queue *keyQueue
	epoch int
}

// Reach returns which part of the outbox a read covered. rows is its result: first the
// rows that were found because they are due, then the others in the order of their
// positions. full means that the read stopped because it had reached Read.Bytes.
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

// Charge postpones a message by Delay. It blocks the message's ordering key meanwhile.
type Charge struct {
	Message         *Message
	Attempts        int // attempts to count: 1 for a refusal, otherwise 0
	Delay           time.Duration
	Err             error
	Cause           Outcome // Refused or Unknown
	SuccessorsAfter int64   // the successors of the message are above this position
}

// Death makes a message a dead letter.
type Death struct {
	Message         *Message
	Metadata        []byte // of the message
	Size            int
	Err             error
	Exhausted       bool  // refused too often; otherwise unacceptable
	SuccessorsAfter int64 // the successors of the message are above this position
}

// Settled is the result of a Settlement. If a part failed, the Scheduler puts it into a
// later Settlement.
type Settled struct {
	Confirmed bool
	Charges   bool
	Deaths    int   // number of deaths that were recorded, counted from the first one
	Vanished  bool  // some rows did not exist any more, or another instance owns their slots
	Wrote     bool  // a transaction that changed something has certainly ended
	Err       error // the error of a part that failed, or nil
}
