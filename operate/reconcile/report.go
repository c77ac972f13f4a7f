package reconcile

import (
	"slices"
	"time"
)

// Report has the differences between a sender and one consumer. Times are in UTC.
type Report struct {
	Consumer string   `json:"consumer"`
	Topics   []string `json:"topics"`

	// From and Until limit the compared period, by the time in an id, or else by the times of
	// sending and handling. Both sides still have all their messages since From.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`

	// AsOf is the time at which the consumers' side was read.
	AsOf time.Time `json:"as_of"`

	// Sent is the number of ids that the sender has sent, and Known of those that the consumer has
	// handled or parked. Hours contains them for each hour, by the time in the ids, also for hours
	// before From for which one side is incomplete.
	Sent  int    `json:"sent"`
	Known int    `json:"known"`
	Hours []Hour `json:"hours,omitempty"`

	// Missing contains the messages that were sent, and that the consumer has neither handled nor
	// parked. MissingSince is when the first of them was sent, or zero.
	Missing      []Missing `json:"missing"`
	MissingSince time.Time `json:"missing_since,omitzero"`

	// Phantoms are what the consumer has handled or parked, and this sender has not sent.
	Phantoms []Phantom `json:"phantoms"`

	// SentRecently counts messages that may still arrive, because they were sent recently.
	SentRecently int `json:"sent_recently"`

	// Parked counts the parked messages of these topics by state, without handled ones.
	Parked []Count `json:"parked,omitempty"`

	// Pending counts these topics' messages in the outbox, Dead their dead letters. State is "".
	Pending Count `json:"pending"`
	Dead    Count `json:"dead"`

	// BusinessKeys reports whether the consumer uses business keys, see dedup.Config.Key. Some
	// missing messages may then have been skipped, because their key was handled under another id.
	BusinessKeys bool `json:"business_keys,omitempty"`
}

// Found reports whether there are missing messages or phantoms.
func (r *Report) Found() bool { return len(r.Missing)+len(r.Phantoms) > 0 }

// Missing is a message that was sent, and that the consumer has neither handled nor parked.
type Missing struct {
	MessageID string `json:"message_id"`
	Topic     string `json:"topic"`

	// SentLogID is the ID of the message in the sent log, for dead.SentLog.Replay.
	SentLogID int64 `json:"sent_log_id"`

	// SentAt and LastSentAt are the times at which the message was first and last sent.
	SentAt     time.Time `json:"sent_at"`
	LastSentAt time.Time `json:"last_sent_at"`
}

// Phantom is a message that the consumer has handled or parked, and that is not in the sent log.
type Phantom struct {
	MessageID string `json:"message_id"`

	// State is "handled", "waiting", "quarantined" or "discarded", since At.
	State string    `json:"state"`
	At    time.Time `json:"at"`

	// Pending reports whether the message waits in the outbox, and Dead whether it is a dead
	// letter: then the broker has received it without a confirm for the forwarder.
	Pending bool `json:"pending,omitempty"`
	Dead    bool `json:"dead,omitempty"`
}

// Count is the number of messages in one state: "waiting" (also behind another message of the
// ordering key), "quarantined" or "discarded". Oldest is when the oldest was parked, or written to
// the outbox, or zero.
type Count struct {
	State  string    `json:"state,omitempty"`
	N      int       `json:"n"`
	Oldest time.Time `json:"oldest,omitzero"`
}

// Hour contains the numbers of messages of one hour. Start is zero for ids without a time.
type Hour struct {
	Start time.Time `json:"start,omitzero"`
	Sent  int       `json:"sent"`
	Known int       `json:"known"`
}

// The keys are hours since 1970, or noTime.
func (r *Report) count(sent, known map[int64]int) {
	hours := map[int64]Hour{}
	for h, n := range sent {
		hours[h] = Hour{Sent: n}
		r.Sent += n
	}
	for h, n := range known {
		hours[h] = Hour{Sent: sent[h], Known: n}
		r.Known += n
	}
	for h, hour := range hours {
		if h != noTime {
			hour.Start = time.Unix(h*3600, 0).UTC()
		}
		r.Hours = append(r.Hours, hour)
	}
	slices.SortFunc(r.Hours, func(a, b Hour) int { return a.Start.Compare(b.Start) })
}
