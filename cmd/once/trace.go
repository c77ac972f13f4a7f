package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate/trace"
)

type traceJSON struct {
	Messages []tracedJSON `json:"messages"`
	Notes    []string     `json:"notes,omitempty"` // tables and rows that were left out
}

type tracedJSON struct {
	ID            string           `json:"id"`
	CausedBy      string           `json:"caused_by,omitempty"`
	Depth         int              `json:"depth"`
	Topic         string           `json:"topic,omitempty"`
	Tenant        string           `json:"tenant,omitempty"`
	AggregateType string           `json:"aggregate_type,omitempty"`
	AggregateID   string           `json:"aggregate_id,omitempty"`
	EventType     string           `json:"event_type,omitempty"`
	Where         []string         `json:"where"`
	Consumers     []atConsumerJSON `json:"consumers"`
	Events        []eventJSON      `json:"events"`
}

type atConsumerJSON struct {
	Name  string    `json:"name"`
	Topic string    `json:"topic,omitempty"`
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
}

type eventJSON struct {
	At       time.Time `json:"at"`
	Place    string    `json:"place"`
	Row      int64     `json:"row,omitempty"`
	Consumer string    `json:"consumer,omitempty"`
	Topic    string    `json:"topic,omitempty"`
	What     string    `json:"what"`
	Detail   string    `json:"detail,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Actor    string    `json:"actor,omitempty"`
	Why      string    `json:"why,omitempty"`
}

func tracedOf(m *trace.Message) tracedJSON {
	j := tracedJSON{
		ID: m.ID, CausedBy: m.CausedBy, Depth: m.Depth, Topic: m.Topic, Tenant: m.Tenant, AggregateType: m.AggregateType,
		AggregateID: m.AggregateID, EventType: m.EventType, Where: m.Where, Consumers: []atConsumerJSON{}, Events: []eventJSON{},
	}
	for _, c := range m.Consumers {
		j.Consumers = append(j.Consumers, atConsumerJSON{c.Name, c.Topic, string(c.State), c.Since})
	}
	for _, e := range m.Events {
		j.Events = append(j.Events, eventJSON{
			e.At, string(e.Place), e.Row, e.Consumer, e.Topic, e.What, e.Detail, e.Attempts, e.Reason, e.Error, e.Actor, e.Why,
		})
	}
	return j
}

func (a *app) traceCommand() *cobra.Command {
	var (
		query     trace.Query
		aggregate string
	)
	cmd := &cobra.Command{
		Use:   "trace [ID]",
		Short: "Say where a message is, and what happened to it",
		Long: `Say where a message is, and what happened to it: outbox, sent log, dead letters, parked
messages and quarantine of every consumer, inbox and audit, in the order of time. ID is
the id of a message. Other flags select the latest messages of an aggregate or a tenant.
If producer and consumers have databases of their own, run the command for each of them.

  once trace 0197c3a2-6f1e-7cc3-98c4-dc0c0c07398f --causes
  once trace --aggregate order/4711`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("unexpected argument %q: give the id of one message", args[1])
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&aggregate, "aggregate", "", "the messages about this aggregate, as TYPE/ID")
	flags.StringVar(&query.Tenant, "tenant", "", "the messages of this tenant")
	flags.BoolVar(&query.Causes, "causes", false, "also what the messages caused, and what became of that")
	query.Limit = 100
	flags.Var(atLeast(&query.Limit, 1), "limit", "largest number of messages")
	flags.Var(atLeast(&query.OutboxRows, 0), "outbox-rows",
		"how many rows of the outbox to read, the oldest first; 0: 100,000 for a message id, else 20,000")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			query.MessageID = args[0]
		}
		var isPair bool
		query.AggregateType, query.AggregateID, isPair = strings.Cut(aggregate, "/")
		switch {
		case aggregate != "" && (!isPair || query.AggregateType == "" || query.AggregateID == ""):
			return usagef("%q is no aggregate: give its type and its id, as order/4711", aggregate)
		case (query.MessageID != "") == (aggregate != "" || query.Tenant != ""), aggregate != "" && query.Tenant != "":
			return usagef("say which message: give the id of a message, or --aggregate, or --tenant")
		}
		return a.withTables(func(ctx context.Context, db database, _ []string) error {
			finder, err := trace.New(db.DB, db.tables)
			if err != nil {
				return err
			}
			answer, err := finder.Find(ctx, query)
			if err != nil {
				return err
			}
			return a.printTrace(answer)
		})(cmd, args)
	}
	return cmd
}

func (a *app) printTrace(answer trace.Answer) error {
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
