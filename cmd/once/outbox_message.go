package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// pendingJSON describes a message of the outbox. Lists leave out Metadata and the
// payload.
type pendingJSON struct {
	ID           int64             `json:"id"`
	MessageID    string            `json:"message_id"`
	Topic        string            `json:"topic"`
	OrderingKey  string            `json:"ordering_key,omitempty"`
	Size         int               `json:"size"`
	State        pending.State     `json:"state"`
	Paused       bool              `json:"paused,omitempty"`     // whether the topic or the tenant of the message is paused
	BlockedBy    int64             `json:"blocked_by,omitempty"` // ID of the message that blocks the key of this message
	Attempts     int               `json:"attempts"`
	Error        string            `json:"error,omitempty"`
	MaybeSent    bool              `json:"maybe_sent"`
	CreatedAt    time.Time         `json:"created_at"`
	DueAt        time.Time         `json:"due_at,omitzero"`
	FailingSince time.Time         `json:"failing_since,omitzero"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	content
}

// pendingListJSON is the JSON output of "once outbox list".
type pendingListJSON struct {
	Messages []pendingJSON `json:"messages"`
	Next     int64         `json:"next,omitempty"` // --after of the next page
}

func pendingOf(m *pending.Message) pendingJSON {
	return pendingJSON{
		ID: m.ID, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey, Size: m.Size, State: m.State, Paused: m.Paused,
		BlockedBy: m.BlockedBy,
		Attempts:  m.Attempts, Error: m.LastError, MaybeSent: m.Unknown, CreatedAt: m.CreatedAt, DueAt: m.DueAt, FailingSince: m.FailingSince,
	}
}

// wait returns a short text that says why a message waits.
func (j *pendingJSON) wait() string {
	if j.Paused {
		return "paused, " + j.reason()
	}
	return j.reason()
}

func (j *pendingJSON) reason() string {
	switch j.State {
	case pending.Blocked:
		return fmt.Sprintf("blocked by %d", j.BlockedBy)
	case pending.BackingOff:
		return "backing off until " + at(j.DueAt)
	case pending.Delayed:
		return "delayed until " + at(j.DueAt)
	default:
		return "due"
	}
}

// more returns the line below a page that says how to get the next page. If next is 0,
// it returns "".
func more(next int64) string {
	if next == 0 {
		return ""
	}
	return fmt.Sprintf("\nThere may be more: add --after %d\n", next)
}

func (a *app) outboxListCommand() *cobra.Command {
	filter, state, after := pending.Filter{Limit: 100}, "", 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List messages, in the order of the outbox, and say why they wait",
		Long: `List messages, in the order of the outbox, and say why they wait. One call looks at
20,000 messages at most, so a page may be short, or empty, although more match.`,
		Args: noArgs,
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			filter.AfterID, filter.State = int64(after), pending.State(state)
			page, err := m.List(ctx, filter)
			if err != nil {
				return err
			}
			out := pendingListJSON{Messages: []pendingJSON{}, Next: page.Next}
			var rows [][]string
			for _, msg := range page.Messages {
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
	addPendingFilter(cmd, &filter, &state)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) outboxShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one message with its payload",
		Args:  oneID,
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			msg, err := m.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := pendingOf(&msg)
			j.Metadata, j.content = msg.Metadata, contentOf(msg.Payload)
			return a.print(j, pendingText(&j)+messageText(msg.Metadata, msg.Payload))
		}),
	}
}

// pendingText returns a message as text, without metadata and payload.
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
