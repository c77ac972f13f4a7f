package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// blockedJSON is the JSON output of "once outbox blocked".
type blockedJSON struct {
	Keys []blockedKeyJSON `json:"keys"`
	Next string           `json:"next,omitempty"` // --after of the next page
}

type blockedKeyJSON struct {
	OrderingKey string    `json:"ordering_key"`
	Head        int64     `json:"head"` // ID of the message, or position of the dead letter, behind which the other messages wait
	Dead        bool      `json:"dead"` // whether the head is a dead letter
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
