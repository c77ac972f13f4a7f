package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

// parkedConditions are the flags of addParkedFilter that select messages.
var parkedConditions = []string{
	"consumer", "topic", "message-id", "ordering-key", "tenant", "state", "stored-after", "stored-before",
}

func addParkedFilter(cmd *cobra.Command, f *operate.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only of the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.Var(oneOf(&f.State, parked.Waiting, parked.Held, parked.Quarantined, parked.Resolved,
		parked.Discarded), "state", "only in this state")
	flags.Var(moment(&f.CreatedAfter), "stored-after", "only stored at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.CreatedBefore), "stored-before", "only stored before this time")
}

func (a *app) parkedCommand() *cobra.Command {
	return group("parked", "Messages in the consumers' database: find, run now, cancel, discard",
		a.parkedListCommand(), a.parkedShowCommand(), a.parkedCountCommand(),
		a.parkedRunCommand(), a.parkedCancelCommand(), a.parkedDiscardCommand())
}

func (a *app) parkedListCommand() *cobra.Command {
	filter, after := operate.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List parked messages, in the order of their IDs",
		Args:  noArgs,
		RunE: with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, _ []string) error {
			out := parkedListJSON{Messages: []parkedJSON{}}
			var rows [][]string
			next, err := eachRow(ctx, filter, after, m.List, func(m *parked.Message) {
				out.Messages = append(out.Messages, parkedOf(m))
				rows = append(rows, []string{
					fmt.Sprint(m.ID), m.Consumer, m.Topic, m.MessageID, m.State, waitsFor(m), fmt.Sprint(m.Attempts), m.Error,
				})
			})
			if err != nil {
				return err
			}
			out.Next = next
			return a.printList(out, next, []string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "STATE", "WAITS FOR (UTC)", "TRIES", "ERROR"}, rows,
				"No parked message matches.")
		}),
	}
	addParkedFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) parkedCountCommand() *cobra.Command {
	return countCommand(a, "Count parked messages", addParkedFilter, parked.New, (*parked.Messages).Count)
}

// Lists leave out Metadata and the payload.
type parkedJSON struct {
	ID            int64             `json:"id"`
	Consumer      string            `json:"consumer"`
	Topic         string            `json:"topic"`
	MessageID     string            `json:"message_id"`
	OrderingKey   string            `json:"ordering_key,omitempty"`
	Tenant        string            `json:"tenant,omitempty"`
	State         string            `json:"state"`
	DueAt         time.Time         `json:"due_at"`
	Claimed       bool              `json:"claimed"`
	ClaimedBy     string            `json:"claimed_by,omitempty"`
	Attempts      int               `json:"attempts"`
	Crashes       int               `json:"crashes"`
	Replays       int               `json:"replays"`
	Early         bool              `json:"early"`
	BlockedBy     int64             `json:"blocked_by,omitempty"`
	Reason        string            `json:"reason,omitempty"`
	Error         string            `json:"error,omitempty"`
	ErrorType     string            `json:"error_type,omitempty"`
	Size          int               `json:"size"`
	CreatedAt     time.Time         `json:"created_at"`
	FirstFailedAt time.Time         `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time         `json:"last_failed_at,omitzero"`
	FinishedAt    time.Time         `json:"finished_at,omitzero"`
	Damaged       string            `json:"damaged,omitempty"` // why the stored message cannot be read
	Metadata      map[string]string `json:"metadata,omitempty"`
	content
}

type parkedListJSON struct {
	Messages []parkedJSON `json:"messages"`
	Next     int64        `json:"next,omitempty"` // --after of the next page
}

func parkedOf(m *parked.Message) parkedJSON {
	j := parkedJSON{
		ID: m.ID, Consumer: m.Consumer, Topic: m.Topic, MessageID: m.MessageID, OrderingKey: m.OrderingKey, Tenant: m.Tenant,
		State: m.State, DueAt: m.DueAt, Claimed: m.Claimed, ClaimedBy: m.ClaimedBy,
		Attempts: m.Attempts, Crashes: m.Crashes, Replays: m.Replays, Early: m.Early, BlockedBy: m.BlockedBy,
		Reason: m.Reason, Error: m.Error, ErrorType: m.ErrorType, Size: m.Size,
		CreatedAt: m.CreatedAt, FirstFailedAt: m.FirstFailedAt, LastFailedAt: m.LastFailedAt, FinishedAt: m.FinishedAt,
	}
	if m.MessageErr != nil {
		j.Damaged = m.MessageErr.Error()
	}
	return j
}

func waitsFor(m *parked.Message) string {
	switch {
	case m.State == parked.Held:
		return fmt.Sprintf("message %d", m.BlockedBy)
	case m.State != parked.Waiting:
		return ""
	case m.Claimed:
		return "its handler"
	case m.Early:
		return "an earlier version, until " + at(m.DueAt)
	}
	return at(m.DueAt)
}

func (a *app) parkedShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one parked message with its content",
		Args:  oneID,
		RunE: with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, args []string) error {
			one, err := named(ctx, args, m.Get)
			if err != nil {
				return err
			}
			j := parkedOf(&one)
			text := parkedText(&one, j.Damaged)
			if one.Message != nil {
				j.Metadata, j.content = one.Message.Metadata, contentOf(one.Message.Payload)
				text += messageText(one.Message.Metadata, one.Message.Payload)
			}
			return a.print(j, text)
		}),
	}
}

func parkedText(m *parked.Message, damaged string) string {
	return fields(
		"id", fmt.Sprint(m.ID), "consumer", m.Consumer, "topic", m.Topic, "message id", m.MessageID, "ordering key", m.OrderingKey,
		"tenant", m.Tenant, "state", m.State, "waits for", waitsFor(m), "claimed by", m.ClaimedBy, "reason", m.Reason,
		"error", m.Error, "error type", m.ErrorType, "attempts", fmt.Sprint(m.Attempts), "crashes", number(int64(m.Crashes)),
		"replays", number(int64(m.Replays)), "damaged", damaged, "size", fmt.Sprint(m.Size), "stored", at(m.CreatedAt),
		"first failed", at(m.FirstFailedAt), "last failed", at(m.LastFailedAt), "finished", at(m.FinishedAt),
	)
}
