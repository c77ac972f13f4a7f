package journey

import "time"

// Answer contains the messages that Find has found in the tables of one database.
type Answer struct {
	// Messages are in the order of their first events. With Query.Causes, a message that
	// was caused by another message follows that message instead. The list contains the
	// message that Query.MessageID names even if no table contains it.
	Messages []Message

	// Notes are sentences that say what Find has not read: tables that are missing in this
	// database, and rows beyond a limit.
	Notes []string
}

// Message is one message with its events.
type Message struct {
	// ID is the id of the message. CausedBy is the id of the message whose handler produced
	// this message, or "" if no table contains it. Depth is 0 for a message that the Query
	// selects, 1 for a message that was caused by such a message, and so on.
	ID, CausedBy string
	Depth        int

	// Topic, Tenant, AggregateType, AggregateID and EventType are properties of the
	// message. They are empty if no table contains them.
	Topic, Tenant, AggregateType, AggregateID, EventType string

	// Where contains sentences that say where the message is now, and which facts no table
	// can show.
	Where []string

	// Consumers are the consumers that have a row of the message, and the consumers that
	// are registered for its topic, in alphabetical order.
	Consumers []Consumer

	// Events are in the order of their times.
	Events []Event
}

// Consumer is the state of a message at a consumer.
type Consumer struct {
	Name, Topic string
	State       State

	// Since is the time at which the message entered this state. It is zero for Unseen.
	Since time.Time
}

// State is the state of a message at a consumer.
type State string

// States of a message at a consumer.
const (
	// Handled: the inbox contains the message, so the handler has run and its transaction
	// was committed.
	Handled State = "handled"

	// Waiting: the message is stored, and waits for its next attempt.
	Waiting State = "waiting"

	// Held: the message waits behind another message of its ordering key.
	Held State = "held"

	// Quarantined: the consumer gave up on the message.
	Quarantined State = "quarantined"

	// Discarded: an operator has discarded the message, so the handler will not run.
	Discarded State = "discarded"

	// Unseen: the consumer is registered for the topic, but has no row of the message. It
	// has not received the message yet, or has deleted the row after the retention.
	Unseen State = "unseen"
)

// Place is the table from which an event comes.
type Place string

// These constants name the tables in which an event was found.
const (
	Outbox      Place = "outbox"
	DeadLetters Place = "dead letters"
	SentLog     Place = "sent log"
	Parked      Place = "parked"
	Inbox       Place = "inbox"
	Audit       Place = "audit"
)

// Event is one thing that has happened to a message, or that will happen.
type Event struct {
	// At is the time by the database's clock, in milliseconds. It is in the future
	// for a message that is due later.
	At time.Time

	// Place is the table. Row is the number of the row in this table: the position in the
	// outbox, or the ID in package deadletter or poison. Row is 0 in the inbox.
	Place Place
	Row   int64

	// Consumer and Topic are empty if the table does not contain them.
	Consumer, Topic string

	// The field What contains the kind of event, such as "written", "sent" or
	// "quarantined". For an event from the audit log, it contains the action of the
	// operator. Detail contains more information.
	What, Detail string

	// Attempts, Reason and Error describe a failure.
	Attempts      int
	Reason, Error string

	// Actor is the person who acted, and Why is the reason. Both come from the audit log.
	Actor, Why string
}
