package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
)

// pendingConditions are the flags of addPendingFilter that select messages.
var pendingConditions = []string{"topic", "message-id", "ordering-key", "state", "written-after", "written-before"}

func addPendingFilter(cmd *cobra.Command, f *operate.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.Var(oneOf(&f.State, outbox.Due, outbox.BackingOff, outbox.Delayed, outbox.Blocked),
		"state", "only in this state: due, backing_off, delayed or blocked")
	flags.Var(moment(&f.CreatedAfter), "written-after", "only written at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.CreatedBefore), "written-before", "only written before this time")
}

func (a *app) outboxCommand() *cobra.Command {
	return group("outbox", "Messages that wait to be sent: find, try now, cancel, pause",
		a.outboxTopicsCommand(), a.outboxListCommand(), a.outboxShowCommand(), a.outboxCountCommand(), a.outboxBlockedCommand(),
		a.outboxRetryCommand(), a.outboxCancelCommand(),
		a.outboxPauseCommand(), a.outboxResumeCommand(), a.outboxPausedCommand())
}

// Lists leave out Metadata and the payload.
type pendingJSON struct {
	ID           int64             `json:"id"`
	MessageID    string            `json:"message_id"`
	Topic        string            `json:"topic"`
	OrderingKey  string            `json:"ordering_key,omitempty"`
	Size         int               `json:"size"`
	State        string            `json:"state"`
	Paused       bool              `json:"paused,omitempty"`            // whether the topic or the tenant of the message is paused
	BlockedBy    int64             `json:"blocked_by,omitempty"`        // ID of the message that blocks the key of this message
	Letter       int64             `json:"blocked_by_letter,omitempty"` // ID of that message in the dead letters, if it is one
	Attempts     int               `json:"attempts"`
	Error        string            `json:"error,omitempty"`
	MaybeSent    bool              `json:"maybe_sent"`
	CreatedAt    time.Time         `json:"created_at"`
	DueAt        time.Time         `json:"due_at,omitzero"`
	FailingSince time.Time         `json:"failing_since,omitzero"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	content
}

type pendingListJSON struct {
	Messages []pendingJSON `json:"messages"`
	Next     int64         `json:"next,omitempty"` // --after of the next page
}

func pendingOf(m *outbox.Message) pendingJSON {
	return pendingJSON{
		ID: m.ID, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey, Size: m.Size, State: m.State, Paused: m.Paused,
		BlockedBy: m.BlockedBy, Letter: m.BlockedByLetter,
		Attempts: m.Attempts, Error: m.LastError, MaybeSent: m.Unknown, CreatedAt: m.CreatedAt, DueAt: m.DueAt, FailingSince: m.FailingSince,
	}
}

func (j *pendingJSON) wait() string {
	if j.Paused {
		return "paused, " + j.reason()
	}
	return j.reason()
}

func (j *pendingJSON) reason() string {
	switch j.State {
	case outbox.Blocked:
		if j.Letter > 0 {
			return fmt.Sprintf("blocked by dead letter %d", j.Letter)
		}
		return fmt.Sprintf("blocked by %d", j.BlockedBy)
	case outbox.BackingOff:
		return "backing off until " + at(j.DueAt)
	case outbox.Delayed:
		return "delayed until " + at(j.DueAt)
	default:
		return "due"
	}
}

func (a *app) outboxListCommand() *cobra.Command {
	filter, after := operate.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List messages, in the order of the outbox, and say why they wait",
		Long: `List messages, in the order of the outbox, and say why they wait. One call looks at
20,000 messages at most, so a page may be short, or empty, although more match.`,
		Args: noArgs,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			filter.AfterID = int64(after)
			page, err := m.List(ctx, filter)
			if err != nil {
				return err
			}
			out := pendingListJSON{Messages: []pendingJSON{}, Next: page.Next}
			var rows [][]string
			for _, msg := range page.Rows {
				j := pendingOf(&msg)
				out.Messages = append(out.Messages, j)
				rows = append(rows, []string{
					fmt.Sprint(j.ID), j.Topic, j.MessageID, at(j.CreatedAt), fmt.Sprint(j.Attempts), j.OrderingKey, j.wait(), j.Error,
				})
			}
			text := "No message of the outbox matches.\n"
			if page.Next > 0 {
				text = "No message matches so far.\n"
			}
			if len(rows) > 0 {
				text = table(a.width, []string{"ID", "TOPIC", "MESSAGE", "WRITTEN (UTC)", "TRIES", "ORDERING KEY", "STATE", "ERROR"}, rows)
			}
			return a.print(out, text+more(page.Next))
		}),
	}
	addPendingFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) outboxShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one message with its payload",
		Args:  oneID,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, args []string) error {
			msg, err := named(ctx, args, m.Get)
			if err != nil {
				return err
			}
			j := pendingOf(&msg)
			j.Metadata, j.content = msg.Metadata, contentOf(msg.Payload)
			return a.print(j, pendingText(&j)+messageText(msg.Metadata, msg.Payload))
		}),
	}
}

func pendingText(j *pendingJSON) string {
	note := ""
	if j.MaybeSent {
		note = "may have been sent before"
	}
	return fields(
		"message", fmt.Sprint(j.ID), "topic", j.Topic, "message id", j.MessageID, "ordering key", j.OrderingKey, "state", j.wait(),
		"attempts", fmt.Sprint(j.Attempts), "error", j.Error, "note", note, "written", at(j.CreatedAt), "failing since", at(j.FailingSince),
	)
}

// Next is set if only a part of a long outbox was counted.
type partJSON struct {
	Count int   `json:"count"`
	Next  int64 `json:"next,omitempty"` // value of --after to count the rest
}

func (a *app) outboxCountCommand() *cobra.Command {
	filter, after := operate.Filter{}, 0
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count messages, among 20,000 at most",
		Args:  noArgs,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			filter.AfterID = int64(after)
			n, err := m.Count(ctx, filter)
			if err != nil {
				return err
			}
			return a.print(partJSON{n.N, n.Next}, fmt.Sprintln(n.N)+more(n.Next))
		}),
	}
	addPendingFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

type topicsJSON struct {
	Topics []topicJSON `json:"topics"`
	Next   int64       `json:"next,omitempty"` // value of --after to count the rest
}

type topicJSON struct {
	Topic         string  `json:"topic"`
	Pending       int     `json:"pending"`
	Due           int     `json:"due"`
	BackingOff    int     `json:"backing_off"`
	Delayed       int     `json:"delayed"`
	Blocked       int     `json:"blocked"`
	OldestSeconds float64 `json:"oldest_seconds"` // age of the oldest message
	Paused        bool    `json:"paused,omitempty"`
}

func (a *app) outboxTopicsCommand() *cobra.Command {
	filter, after := operate.Filter{}, 0
	cmd := &cobra.Command{
		Use:   "topics",
		Short: "Count messages by topic and state, among 20,000 at most",
		Args:  noArgs,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			filter.AfterID = int64(after)
			backlog, err := m.Backlog(ctx, filter)
			if err != nil {
				return err
			}
			out := topicsJSON{Topics: []topicJSON{}, Next: backlog.Next}
			var rows [][]string
			for _, t := range backlog.Topics {
				out.Topics = append(out.Topics, topicJSON{t.Name, t.Pending, t.Due, t.BackingOff, t.Delayed, t.Blocked, t.Oldest.Seconds(), t.Paused})
				oldest := age(t.Oldest)
				if t.Paused {
					oldest += ", paused"
				}
				rows = append(rows, []string{
					t.Name, fmt.Sprint(t.Pending), fmt.Sprint(t.Due), fmt.Sprint(t.BackingOff), fmt.Sprint(t.Delayed),
					fmt.Sprint(t.Blocked), oldest,
				})
			}
			text := "No message of the outbox matches.\n"
			if len(rows) > 0 {
				text = table(a.width, []string{"TOPIC", "PENDING", "DUE", "BACKING OFF", "DELAYED", "BLOCKED", "OLDEST"}, rows)
			}
			return a.print(out, text+more(backlog.Next))
		}),
	}
	addPendingFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}
