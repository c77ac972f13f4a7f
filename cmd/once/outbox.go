package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// pendingConditions are the flags of addPendingFilter that select messages.
var pendingConditions = []string{"topic", "message-id", "ordering-key", "state", "written-after", "written-before"}

func addPendingFilter(cmd *cobra.Command, f *pending.Filter, state *string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.Var(oneOf(state, string(pending.Due), string(pending.BackingOff), string(pending.Delayed), string(pending.Blocked)),
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

// withPending is withTables with the messages of the outbox.
func (a *app) withPending(
	work func(ctx context.Context, m *pending.Messages, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		messages, err := pending.New(db.DB, pending.Config{Schema: db.tables, WithoutContent: db.withoutContent})
		if err != nil {
			return err
		}
		return work(ctx, messages, args)
	})
}

// pendingJSON is a message of the outbox. Lists leave out Metadata and the payload.
type pendingJSON struct {
	ID           int64             `json:"id"`
	MessageID    string            `json:"message_id"`
	Topic        string            `json:"topic"`
	OrderingKey  string            `json:"ordering_key,omitempty"`
	Size         int               `json:"size"`
	State        pending.State     `json:"state"`
	Paused       bool              `json:"paused,omitempty"`     // its topic or tenant is paused
	BlockedBy    int64             `json:"blocked_by,omitempty"` // the ID of the message that blocks its key
	Attempts     int               `json:"attempts"`
	Error        string            `json:"error,omitempty"`
	MaybeSent    bool              `json:"maybe_sent"`
	CreatedAt    time.Time         `json:"created_at"`
	DueAt        time.Time         `json:"due_at,omitzero"`
	FailingSince time.Time         `json:"failing_since,omitzero"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	content
}

// pendingListJSON is the output of outbox list.
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

// wait says why a message waits.
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

// more returns the line below a page that may not be the last.
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

// pendingText renders a message without its metadata and payload.
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

// partJSON is the JSON output of "once outbox count". One call counts only a part of
// a long outbox; Next is then set.
type partJSON struct {
	Count int   `json:"count"`
	Next  int64 `json:"next,omitempty"` // --after for the rest
}

func (a *app) outboxCountCommand() *cobra.Command {
	filter, state, after := pending.Filter{}, "", 0
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count messages, among 20,000 at most",
		Args:  noArgs,
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			filter.AfterID, filter.State = int64(after), pending.State(state)
			n, err := m.Count(ctx, filter)
			if err != nil {
				return err
			}
			return a.print(partJSON{n.N, n.Next}, fmt.Sprintln(n.N)+more(n.Next))
		}),
	}
	addPendingFilter(cmd, &filter, &state)
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

// topicsJSON is the output of outbox topics.
type topicsJSON struct {
	Topics []topicJSON `json:"topics"`
	Next   int64       `json:"next,omitempty"` // --after for the rest
}

type topicJSON struct {
	Topic         string  `json:"topic"`
	Pending       int     `json:"pending"`
	Due           int     `json:"due"`
	BackingOff    int     `json:"backing_off"`
	Delayed       int     `json:"delayed"`
	Blocked       int     `json:"blocked"`
	OldestSeconds float64 `json:"oldest_seconds"` // age of the message that was written first
	Paused        bool    `json:"paused,omitempty"`
}

func (a *app) outboxTopicsCommand() *cobra.Command {
	filter, state, after := pending.Filter{}, "", 0
	cmd := &cobra.Command{
		Use:   "topics",
		Short: "Count messages by topic and state, among 20,000 at most",
		Args:  noArgs,
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			filter.AfterID, filter.State = int64(after), pending.State(state)
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
	addPendingFilter(cmd, &filter, &state)
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

// blockedJSON is the JSON output of "once outbox blocked".
type blockedJSON struct {
	Keys []blockedKeyJSON `json:"keys"`
	Next string           `json:"next,omitempty"` // --after of the next page
}

type blockedKeyJSON struct {
	OrderingKey string    `json:"ordering_key"`
	Head        int64     `json:"head"` // ID of the message, or position of the dead letter, for which the others wait
	Dead        bool      `json:"dead"` // the head is a dead letter
	Reason      string    `json:"reason"`
	BlockedAt   time.Time `json:"blocked_at"`
	MessageID   string    `json:"message_id,omitempty"`
	Topic       string    `json:"topic,omitempty"`
	Attempts    int       `json:"attempts,omitempty"`
	DueAt       time.Time `json:"due_at,omitzero"`
}

func (a *app) outboxBlockedCommand() *cobra.Command {
	filter := pending.KeyFilter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "blocked",
		Short: "List the blocked ordering keys, and the message for which each waits",
		Long: `List the blocked ordering keys, and the message for which each waits: its head. If the
head is a dead letter, the others wait until it is replayed or discarded, or until
once dead release releases the key.`,
		Args: noArgs,
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			keys, err := m.BlockedKeys(ctx, filter)
			if err != nil {
				return err
			}
			out := blockedJSON{Keys: []blockedKeyJSON{}}
			var rows [][]string
			for _, k := range keys {
				out.Keys = append(out.Keys, blockedKeyJSON(k))
				rows = append(rows, []string{
					k.OrderingKey, fmt.Sprint(k.Head), k.Reason, at(k.BlockedAt), k.Topic, fmt.Sprint(k.Attempts), at(k.DueAt), k.MessageID,
				})
			}
			if len(rows) == 0 {
				return a.print(out, "No ordering key is blocked.\n")
			}
			text := table(a.width, []string{"ORDERING KEY", "HEAD", "REASON", "SINCE (UTC)", "TOPIC", "TRIES", "NEXT TRY (UTC)", "MESSAGE"}, rows)
			if len(rows) == filter.Limit {
				out.Next = keys[len(keys)-1].OrderingKey
				text += fmt.Sprintf("\nThere may be more: add --after %q\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	cmd.Flags().StringVar(&filter.OrderingKey, "ordering-key", "", "only this key")
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of keys")
	cmd.Flags().StringVar(&filter.AfterKey, "after", "", "begin after this key")
	return cmd
}
