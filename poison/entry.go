package poison

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// Entry is a message in quarantine, with why it is there.
type Entry struct {
	// ID is what Replay, Edit and Discard are given.
	ID int64

	// Consumer is the name of the consumer that failed, Topic what it had
	// subscribed to.
	Consumer, Topic string

	// Message is the message as it came, byte for byte; nil, with MessageErr set,
	// if the stored Envelope is damaged.
	Message    *message.Message
	MessageErr error

	// MessageID is the message's own id, Tenant whose message it is: bounded, and
	// without what a text cannot hold. Message has the true ones.
	MessageID, Tenant string

	// Reason is one of the Reason constants. Error is the text of the last
	// failure, and ErrorType the type of that error. Fingerprint is the same for
	// all that failed for one cause, see Group.
	Reason, Error, ErrorType, Fingerprint string

	// Attempts is how often the handler was tried, Crashes how often the process
	// ended meanwhile, and Replays how often the entry was replayed.
	Attempts, Crashes, Replays int

	// State is "quarantined"; or, of an entry that was replayed, edited or
	// discarded, "waiting", "held" behind the head of its ordering key,
	// "resolved" or "discarded".
	State string

	// DueAt is when it is tried again, if it is waiting. CreatedAt is when it was
	// first stored.
	DueAt, CreatedAt time.Time

	// FirstFailedAt and LastFailedAt are zero if it never failed, FinishedAt is
	// zero if it is neither resolved nor discarded.
	FirstFailedAt, LastFailedAt, FinishedAt time.Time

	// EditedFrom is the ID of the entry that this is the edited form of, and
	// ReplayID that of the Replay that it was part of last; or 0.
	EditedFrom, ReplayID int64

	// BlocksKey says that later messages of its ordering key wait for it.
	BlocksKey bool

	// Envelope is what Message is read from, and Digest tells messages of one
	// MessageID apart.
	Envelope, Digest []byte
}

func shown(all []parked.Entry) []Entry {
	var entries []Entry
	for i := range all {
		entries = append(entries, Entry(all[i].Shown))
	}
	return entries
}

// Group is the entries that failed for one cause: same consumer, reason, type
// and text of the error, but for the ids, numbers and quoted values in it.
type Group struct {
	// Fingerprint is what a Filter finds the entries by.
	Fingerprint string

	// Count is how many entries they are.
	Count int

	// Consumers failed, and had subscribed to Topics.
	Consumers, Topics []string

	// Reason and ErrorType are those of all entries, Error is that of the entry
	// that came last.
	Reason, ErrorType, Error string

	// FirstFailedAt is when one of them failed first, LastFailedAt when one
	// failed last.
	FirstFailedAt, LastFailedAt time.Time
}

func grouped(all []parked.Group) []Group {
	var groups []Group
	for _, g := range all {
		groups = append(groups, Group{
			Fingerprint: g.Fingerprint, Count: int(g.Count), Consumers: g.Consumers, Topics: g.Topics,
			Reason: g.Reason, ErrorType: g.ErrorType, Error: g.Error,
			FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt,
		})
	}
	return groups
}
