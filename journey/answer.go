package journey

import "time"

// Answer is what the tables of one database say.
type Answer struct {
	// Messages are in the order of their first events. A message that was caused by
	// another one follows it. A message that no table has is in the list too if
	// Query.MessageID names it.
	Messages []Message

	// Notes say, in sentences, what was not looked at: tables that this database does
	// not have, and rows beyond a bound.
	Notes []string
}

// Message is one message with its events.
type Message struct {
	// ID is the id of the message. CausedBy is the id of the message whose handler
	// produced it, and Depth the number of such steps from a message that the Query
	// names. CausedBy is empty if no table says it.
	ID, CausedBy string
	Depth        int

	// Topic, Tenant, AggregateType, AggregateID and EventType are those of the
	// message, as far as a table has them.
	Topic, Tenant, AggregateType, AggregateID, EventType string

	// Where says in sentences where the message is now, and what no table knows.
	Where []string

	// Consumers are the consumers that have a row of the message, and those that are
	// registered for its topic, in alphabetical order.
	Consumers []Consumer

	// Events are in the order of their times.
	Events []Event
}

// Consumer is the state of a message at a consumer.
type Consumer struct {
	Name, Topic string
	State       State

	// Since is when the message came into that state. It is zero for Unseen.
	Since time.Time
}

// State is the state of a message at a consumer.
type State string

// The states of a message at a consumer.
const (
	// Handled: the inbox has the message, so the handler has run and its transaction was
	// committed.
	Handled State = "handled"

	// Waiting: the message is stored, and waits for its next attempt.
	Waiting State = "waiting"

	// Held: the message waits behind another one of its ordering key.
	Held State = "held"

	// Quarantined: the consumer gave up on the message.
	Quarantined State = "quarantined"

	// Discarded: an operator ended the message; the handler does not run.
	Discarded State = "discarded"

	// Unseen: the consumer is registered for the topic and has no row of the message.
	// It has not received the message yet, or has forgotten it.
	Unseen State = "unseen"
)

// Place is the table that an event comes from.
type Place string

// The places.
const (
	Outbox      Place = "outbox"
	DeadLetters Place = "dead letters"
	SentLog     Place = "sent log"
	Parked      Place = "parked"
	Inbox       Place = "inbox"
	Audit       Place = "audit"
)

// Event is one thing that happened to a message, or that will happen.
type Event struct {
	// At is the time by the database's clock, in milliseconds. It is in the future
	// for a message that is due later.
	At time.Time

	// Place is the table, and Row the number of the row there: the position in the
	// outbox, or the ID of package deadletter or poison. Row is 0 in the inbox.
	Place Place
	Row   int64

	// Consumer and Topic are empty where the table has none.
	Consumer, Topic string

	// What is a verb or a short phrase, such as "written", "sent", "quarantined", or,
	// from the audit, the action. Detail says more, in words.
	What, Detail string

	// Attempts, Reason and Error are those of a failure.
	Attempts      int
	Reason, Error string

	// Actor is who did it, and Why the reason, from the audit.
	Actor, Why string
}
