package trace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Answer contains the messages that Find has found in the tables of one database.
type Answer struct {
	// Messages are in the order of their first events, with Query.Causes after the message that
	// caused them. The one that Query.MessageID names is there even if no table contains it.
	Messages []Message

	// Notes say what Find has not read: missing tables, and rows beyond a limit.
	Notes []string
}

// Message is one message with its events.
type Message struct {
	// CausedBy is the id of the message whose handler produced this one, or "". Depth is 0 for a
	// message that the Query selects, 1 for one that was caused by such a message, and so on.
	ID, CausedBy string
	Depth        int

	// These are empty if no table contains them.
	Topic, Tenant, AggregateType, AggregateID, EventType string

	// Where says where the message is now, and which facts no table can show.
	Where []string

	// Consumers have a row of the message, or are registered for its topic, alphabetically.
	Consumers []Consumer

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
	// Handled: the message is in the inbox. The handler's transaction was committed.
	Handled State = "handled"

	// Waiting: the message is stored, and waits for its next attempt.
	Waiting State = "waiting"

	// Held: the message waits behind another message of its ordering key.
	Held State = "held"

	// Quarantined: the consumer gave up on the message.
	Quarantined State = "quarantined"

	// Discarded: an operator has discarded the message, so the handler will not run.
	Discarded State = "discarded"

	// Unseen: the consumer is registered for the topic, but has not received the message yet, or
	// has deleted its row after the retention.
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
	// At is by the database's clock, and in the future for a message that is due later.
	At time.Time

	// Row is the number of the row in the table Place: the position in the outbox, the ID in
	// package dead or quarantine, or 0 in the inbox.
	Place Place
	Row   int64

	// Consumer and Topic are empty if the table does not contain them.
	Consumer, Topic string

	// What is the kind of event, such as "written", "sent" or "quarantined", or an operator's
	// action from the audit log. Detail says more.
	What, Detail string

	// Attempts, Reason and Error describe a failure.
	Attempts      int
	Reason, Error string

	// Actor is the person who acted, and Why is the reason. Both come from the audit log.
	Actor, Why string
}

func (m *Message) describe(topic, tenant, aggregateType, aggregateID, eventType, causation string) {
	m.Topic, m.Tenant = cmp.Or(m.Topic, topic), cmp.Or(m.Tenant, tenant)
	m.AggregateType, m.AggregateID = cmp.Or(m.AggregateType, aggregateType), cmp.Or(m.AggregateID, aggregateID)
	m.EventType, m.CausedBy = cmp.Or(m.EventType, eventType), cmp.Or(m.CausedBy, causation)
}

func (m *Message) labelsFrom(metadata []byte) {
	fields, err := outboxrow.DecodeMetadata(metadata)
	if err != nil {
		return // a damaged row is shown without labels
	}
	m.describe("", fields[meta.TenantID], fields[meta.AggregateType], fields[meta.AggregateID], fields[meta.EventType],
		fields[meta.CausationID])
}

func (m *Message) add(e Event) { m.Events = append(m.Events, e) }

func (m *Message) say(text string) {
	if !slices.Contains(m.Where, text) {
		m.Where = append(m.Where, text)
	}
}

// setState is called for the parked rows first, and then for the rows of the inbox, which replace
// the state: the message was handled. Only to Quarantined and Discarded it adds a second state.
func (m *Message) setState(consumer, topic string, state State, since time.Time) {
	if state == Handled {
		for i, c := range m.Consumers {
			if c.Name == consumer && c.State != Quarantined && c.State != Discarded {
				m.Consumers[i].State, m.Consumers[i].Since = state, since
				return
			}
		}
	}
	m.Consumers = append(m.Consumers, Consumer{consumer, topic, state, since})
}

func (s *search) answer() Answer {
	answer := Answer{Notes: s.notes}
	for _, m := range s.messages {
		m.finish(s.tables)
		answer.Messages = append(answer.Messages, *m)
	}
	if s.query.Causes {
		answer.Messages = tree(answer.Messages)
	} else {
		slices.SortStableFunc(answer.Messages, func(a, b Message) int { return a.begin().Compare(b.begin()) })
	}
	return answer
}

func (m *Message) begin() time.Time {
	if len(m.Events) == 0 {
		return time.Time{}
	}
	return m.Events[0].At
}

func tree(all []Message) (ordered []Message) {
	slices.SortStableFunc(all, func(a, b Message) int { return a.begin().Compare(b.begin()) })
	var visit func(m Message)
	visit = func(m Message) {
		ordered = append(ordered, m)
		for _, next := range all {
			if next.CausedBy == m.ID && next.Depth == m.Depth+1 {
				visit(next)
			}
		}
	}
	for _, m := range all {
		if m.Depth == 0 {
			visit(m)
		}
	}
	return ordered
}

func (m *Message) finish(tables map[string]bool) {
	slices.SortFunc(m.Consumers, byName)
	// After a replay, two tables may show that the message was written to the outbox, with the same
	// time. The first is kept.
	slices.SortStableFunc(m.Events, func(a, b Event) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(rank(a), rank(b)))
	})
	m.Events = slices.CompactFunc(m.Events, func(a, b Event) bool { return a.What == "written" && b.What == "written" && a.At.Equal(b.At) })
	reached := false
	unseen := 0
	for _, c := range m.Consumers {
		if c.State == Unseen {
			unseen++
			m.say(fmt.Sprintf("Consumer %q is registered for the topic and has no row of it.", c.Name))
			continue
		}
		reached = true
		m.say(fmt.Sprintf("Consumer %q: %s since %s.", c.Name, c.State, clock(c.Since.UnixMilli())))
	}
	produced := slices.ContainsFunc(m.Events, func(e Event) bool { return e.Place == Outbox || e.Place == DeadLetters })
	sent := slices.ContainsFunc(m.Events, func(e Event) bool { return e.Place == SentLog })
	switch {
	case len(m.Events) == 0:
		m.say("No table of this database has it. It was never committed here; or it was sent, and is in the broker or in another " +
			"database; or it is so old that retention has deleted its rows.")
	case sent && !produced && (!reached || unseen > 0), !sent && !produced && unseen > 0:
		m.say("Between the broker's confirm and the moment at which a consumer stores or handles it, a message is in the broker, " +
			"which no table shows. A consumer without a row has not received it yet, or has forgotten it after its retention.")
	case !reached && !sent && !produced:
		m.say("Only the audit log has it: it was discarded; or it was sent, and is in the broker or in another database; or it is so " +
			"old that retention has deleted its rows.")
	case reached && !sent && !produced && tables["outbox_sent"]:
		m.say("The sent log of this database does not have it: it was written elsewhere, the forwarder keeps no sent messages, " +
			"or the log has forgotten it.")
	}
}

// rank is the order of the tables on a message's way, for events of one millisecond.
func rank(e Event) int {
	return slices.Index([]Place{Outbox, DeadLetters, SentLog, Parked, Inbox, Audit}, e.Place)
}

func fromMillis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }

func clock(millis int64) string { return fromMillis(millis).Format("2006-01-02 15:04:05 UTC") }
