package journey

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
)

// describe sets those fields of the message that are still empty.
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

// say adds a sentence to Where.
func (m *Message) say(text string) {
	if !slices.Contains(m.Where, text) {
		m.Where = append(m.Where, text)
	}
}

// setState sets the state of the message at a consumer. It is called for the parked
// rows first, and then for the rows of the inbox. A row of the inbox shows that the
// message was handled, and replaces the state from a parked row. It does not replace
// the states Quarantined and Discarded. In this case, setState adds a second state for
// the consumer.
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

// answer returns the messages with their events in order.
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

// begin returns the time of the first event, or the zero time.
func (m *Message) begin() time.Time {
	if len(m.Events) == 0 {
		return time.Time{}
	}
	return m.Events[0].At
}

// tree puts each message after the message that caused it.
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

// finish sorts the events, and adds sentences about facts that no table can show.
func (m *Message) finish(tables map[string]bool) {
	slices.SortFunc(m.Consumers, byName)
	// After a replay, two tables may show that the message was written to the outbox. If
	// these two events have the same time, only the first one is kept.
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
	case reached && !sent && !produced && tables["outbox_sent"]:
		m.say("The sent log of this database does not have it: it was written elsewhere, the forwarder keeps no sent messages, " +
			"or the log has forgotten it.")
	}
}

// rank returns the number of the event's table in the order in which a message moves
// through the tables. Events of the same millisecond are sorted by this number.
func rank(e Event) int {
	return slices.Index([]Place{Outbox, DeadLetters, SentLog, Parked, Inbox, Audit}, e.Place)
}

func fromMillis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }

func clock(millis int64) string { return fromMillis(millis).Format("2006-01-02 15:04:05 UTC") }
