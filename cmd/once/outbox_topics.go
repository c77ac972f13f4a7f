package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// partJSON is the JSON output of "once outbox count". One call may count only a part of
// a long outbox. The field Next is then set.
type partJSON struct {
	Count int   `json:"count"`
	Next  int64 `json:"next,omitempty"` // value of --after to count the rest
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

// topicsJSON is the JSON output of "once outbox topics".
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
