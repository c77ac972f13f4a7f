package reconcile

import (
	"slices"
	"time"
)

// Report says how the messages of a sender and of one consumer differ. Times are
// UTC.
type Report struct {
	Consumer string   `json:"consumer"`
	Topics   []string `json:"topics"`

	// From and Until are the time that was compared: that in the message ids, or,
	// for ids without a time, that of sending and handling. Both sides have all their
	// messages since From.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`

	// AsOf is when the consumers' side was read.
	AsOf time.Time `json:"as_of"`

	// Sent and Known are the numbers of ids that the sender has sent and that the
	// consumer knows: it has handled or parked them. Hours divides them by the hour in
	// the ids. They include hours before From in which one side is not complete.
	Sent  int    `json:"sent"`
	Known int    `json:"known"`
	Hours []Hour `json:"hours,omitempty"`

	// Missing are messages that were sent, and that the consumer has neither handled
	// nor parked. MissingSince is when the first of them was sent, or zero.
	Missing      []Missing `json:"missing"`
	MissingSince time.Time `json:"missing_since,omitzero"`

	// Phantoms are messages that the consumer has, and that this sender has not sent.
	Phantoms []Phantom `json:"phantoms"`

	// SentRecently is how many messages have not arrived, but were sent again so
	// recently that they may be on their way.
	SentRecently int `json:"sent_recently"`

	// Parked are the messages of these topics that the consumer has parked, by state,
	// without those that are handled.
	Parked []Parked `json:"parked,omitempty"`

	// Pending and Dead are the messages of these topics that wait in the outbox, and
	// the dead letters.
	Pending Outstanding `json:"pending"`
	Dead    Outstanding `json:"dead"`

	// BusinessKeys reports whether the consumer has dedup.Config.Key. Some of the
	// missing messages may then have been skipped, because their key was handled under
	// another id.
	BusinessKeys bool `json:"business_keys,omitempty"`

	// Questions is the number of questions that were necessary.
	Questions int `json:"questions"`
}

// Found reports whether messages are missing, or were never sent.
func (r *Report) Found() bool { return len(r.Missing)+len(r.Phantoms) > 0 }

// Quarantined returns the number of messages in quarantine.
func (r *Report) Quarantined() int {
	for _, p := range r.Parked {
		if p.State == Quarantined {
			return p.N
		}
	}
	return 0
}

// Missing is a message that has not arrived.
type Missing struct {
	MessageID string `json:"message_id"`
	Topic     string `json:"topic"`

	// SentLogID is its ID in the sent log, which deadletter.SentLog.Replay takes.
	SentLogID int64 `json:"sent_log_id"`

	// SentAt is when it was sent first, and LastSentAt when it was sent last.
	SentAt     time.Time `json:"sent_at"`
	LastSentAt time.Time `json:"last_sent_at"`
}

// Phantom is a message that the sender has not sent.
type Phantom struct {
	MessageID string `json:"message_id"`

	// State is what the consumer has done with it, and At since when.
	State State     `json:"state"`
	At    time.Time `json:"at"`

	// Pending and Dead report whether it waits in the outbox or is a dead letter. Then
	// the broker had it although the forwarder has no confirm.
	Pending bool `json:"pending,omitempty"`
	Dead    bool `json:"dead,omitempty"`
}

// Parked are the parked messages of one state.
type Parked struct {
	State  State     `json:"state"`
	N      int       `json:"n"`
	Oldest time.Time `json:"oldest"`
}

// Outstanding are messages that were not sent. Oldest is when the first of them was
// written, or zero.
type Outstanding struct {
	N      int       `json:"n"`
	Oldest time.Time `json:"oldest,omitzero"`
}

// Hour are the messages of an hour. Start is zero for all ids without a time.
type Hour struct {
	Start time.Time `json:"start,omitzero"`
	Sent  int       `json:"sent"`
	Known int       `json:"known"`
}

// String returns "handled", "waiting", "quarantined" or "discarded".
func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText returns String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (s *State) UnmarshalText(text []byte) error {
	n := slices.Index(stateNames, string(text))
	if n < 0 {
		return errDamaged
	}
	*s = State(n)
	return nil
}

var stateNames = []string{Handled: "handled", Waiting: "waiting", Quarantined: "quarantined", Discarded: "discarded"}
