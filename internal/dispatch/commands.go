package dispatch

import "time"

// Commands are the work that the caller must start now. The slices Publish and
// Notices are valid until the next call of Step.
type Commands struct {
	Read    *Read       // or nil; answer with RowsRead or ReadFailed
	Publish []Publish   // answer each with Published
	Settle  *Settlement // or nil; answer with Settled
	Notices []Notice    // for the log and the instruments

	// Drained reports that Stop was called, and that nothing is in flight,
	// read or waiting to be recorded any more. Expired reports that the time
	// for this has run out.
	Drained, Expired bool

	// WakeAt is the time of the next Step if no event comes before.
	WakeAt time.Time
}

// Publish is the command to publish a message. The ticket tells the attempts
// of one message apart.
type Publish struct {
	Message *Message
	Ticket  uint64
}

// Read is the command to read rows of the outbox in slots.
//
// A sweep returns the rows above From in the order of their positions, and rows
// that are due. A refill returns the rows of Keys above From. Neither returns
// the rows in Known or the successors of a blocked key.
type Read struct {
	Refill bool
	Tidy   bool // first remove blocked keys whose head does not exist any more

	From  int64
	Known []int64 // positions of messages in memory
	Slots []int64

	Limit int // rows
	Bytes int // stop after this many bytes of payload and metadata

	Keys   []string // excluded keys of a sweep, or the keys of a refill
	Topics []string // excluded topics of a sweep; rows with a key are read anyway

	epoch   int
	settled Sight
	refills []queueEpoch
}

// queueEpoch is a queue with its epoch at the begin of a refill.
type queueEpoch struct {
	queue *keyQueue
	epoch int
}

// Reach returns the part of the outbox that rows cover. The rows found by their
// position must come last, in the order of their positions. full reports that
// the read stopped because of its bytes.
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
	return Reach{Highest: highest, Covered: everything}
}

// Settlement is the command to record outcomes in the database.
type Settlement struct {
	Confirmed []*Message // to be deleted
	Charges   []Charge
	Deaths    []Death

	seen Sight
}

func (s *Settlement) empty() bool {
	return len(s.Confirmed) == 0 && len(s.Charges) == 0 && len(s.Deaths) == 0
}

// Charge lets a message wait for Delay and blocks its ordering key meanwhile.
type Charge struct {
	Message         *Message
	Attempts        int // 1 for a refusal, or 0
	Delay           time.Duration
	Err             error
	Cause           Outcome // Refused or Unknown
	SuccessorsAfter int64   // the successors of the message are above this position
}

// Death makes a message a dead letter.
type Death struct {
	Message         *Message
	Size            int
	Err             error
	Exhausted       bool  // refused too often; otherwise unacceptable
	SuccessorsAfter int64 // the successors of the message are above this position
}

// Settled is the result of a Settlement. A part that failed comes again in a
// later Settlement.
type Settled struct {
	Confirmed bool
	Charges   bool
	Deaths    int   // the first so many were recorded
	Vanished  bool  // rows did not exist any more, or their slots belong to another instance
	Wrote     bool  // a transaction has changed something and has certainly ended
	Err       error // why a part failed, or nil
}
