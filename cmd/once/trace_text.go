package main

import (
	"strings"

	"github.com/watermill-once/once/journey"
)

func (a *app) printTrace(answer journey.Answer) error {
	out := traceJSON{Messages: []tracedJSON{}, Notes: answer.Notes}
	var text strings.Builder
	for i := range answer.Messages {
		j := tracedOf(&answer.Messages[i])
		out.Messages = append(out.Messages, j)
		if i > 0 {
			text.WriteString("\n")
		}
		text.WriteString(traceText(a.width, &j))
	}
	if len(out.Messages) == 0 {
		text.WriteString("No message matches.\n")
	}
	if len(out.Notes) > 0 {
		text.WriteString("\n")
	}
	for _, note := range out.Notes {
		text.WriteString(plain(note) + "\n")
	}
	return a.print(out, text.String())
}

// traceText returns a message as text: its properties, its events, and where it is now.
// The text is indented by two spaces for each level of m.Depth, so that a message is
// indented below the message that caused it.
func traceText(width int, m *tracedJSON) string {
	aggregate := ""
	if m.AggregateID != "" {
		aggregate = m.AggregateType + "/" + m.AggregateID
	}
	text := fields(
		"message", m.ID, "caused by", m.CausedBy, "topic", m.Topic, "event type", m.EventType, "aggregate", aggregate, "tenant", m.Tenant,
	)
	var rows [][]string
	for _, e := range m.Events {
		rows = append(rows, []string{e.At.Format("2006-01-02 15:04:05.000"), e.Place, e.Consumer, e.What, eventText(&e)})
	}
	indent := strings.Repeat("  ", m.Depth)
	if len(rows) > 0 {
		if width > 0 {
			width = max(40, width-len(indent))
		}
		text += "\n" + table(width, []string{"TIME (UTC)", "PLACE", "CONSUMER", "WHAT", "DETAIL"}, rows)
	}
	where := []string{""}
	for _, sentence := range m.Where {
		where = append(where, plain(sentence))
	}
	text += strings.Join(where, "\n") + "\n"
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(indent)
		}
		b.WriteString(line)
	}
	return b.String()
}

// eventText returns the details of an event as text.
func eventText(e *eventJSON) string {
	var parts []string
	for _, part := range []struct{ name, value string }{
		{"", e.Detail}, {"by ", e.Actor}, {"because ", e.Why}, {"", e.Reason}, {"attempts ", number(int64(e.Attempts))}, {"error: ", e.Error},
	} {
		if part.value != "" {
			parts = append(parts, part.name+part.value)
		}
	}
	return strings.Join(parts, ", ")
}
