package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// entryJSON describes an entry of the quarantine. Lists leave out Stack, Metadata and
// the payload.
type entryJSON struct {
	ID            int64             `json:"id"`
	Consumer      string            `json:"consumer"`
	Topic         string            `json:"topic"`
	MessageID     string            `json:"message_id"`
	Tenant        string            `json:"tenant,omitempty"`
	State         string            `json:"state"`
	Reason        string            `json:"reason"`
	Error         string            `json:"error"`
	ErrorType     string            `json:"error_type"`
	Group         string            `json:"group"`
	Stack         string            `json:"stack,omitempty"`
	Attempts      int               `json:"attempts"`
	Crashes       int               `json:"crashes"`
	Replays       int               `json:"replays"`
	BlocksKey     bool              `json:"blocks_key"`
	CreatedAt     time.Time         `json:"created_at"`
	FirstFailedAt time.Time         `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time         `json:"last_failed_at,omitzero"`
	FinishedAt    time.Time         `json:"finished_at,omitzero"`
	EditedFrom    int64             `json:"edited_from,omitempty"`
	ReplayID      int64             `json:"replay_id,omitempty"`
	Damaged       string            `json:"damaged,omitempty"` // why the stored message cannot be read
	Metadata      map[string]string `json:"metadata,omitempty"`
	content
}

// entriesJSON is the JSON output of "once quarantine list".
type entriesJSON struct {
	Entries []entryJSON `json:"entries"`
	Next    int64       `json:"next,omitempty"` // --after of the next page
}

func entryOf(e *poison.Entry) entryJSON {
	j := entryJSON{
		ID: e.ID, Consumer: e.Consumer, Topic: e.Topic, MessageID: e.MessageID, Tenant: e.Tenant, State: e.State,
		Reason: e.Reason, Error: e.Error, ErrorType: e.ErrorType, Group: e.Fingerprint,
		Attempts: e.Attempts, Crashes: e.Crashes, Replays: e.Replays, BlocksKey: e.BlocksKey,
		CreatedAt: e.CreatedAt, FirstFailedAt: e.FirstFailedAt, LastFailedAt: e.LastFailedAt, FinishedAt: e.FinishedAt,
		EditedFrom: e.EditedFrom, ReplayID: e.ReplayID,
	}
	if e.MessageErr != nil {
		j.Damaged = e.MessageErr.Error()
	}
	return j
}

func (a *app) quarantineShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one entry with its message, also after it was replayed or discarded",
		Args:  oneID,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			e, err := q.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := entryOf(&e)
			j.Stack = e.Stack
			text := entryText(&j)
			if e.Stack != "" {
				text += "stack:\n" + strings.TrimRight(lines(e.Stack), "\n") + "\n"
			}
			if e.Message != nil {
				j.Metadata, j.content = e.Message.Metadata, contentOf(e.Message.Payload)
				text += messageText(e.Message.Metadata, e.Message.Payload)
			}
			return a.print(j, text)
		}),
	}
}

// entryText returns an entry as text, without metadata and payload.
func entryText(e *entryJSON) string {
	blocks := ""
	if e.BlocksKey {
		blocks = "later messages of its ordering key wait for it"
	}
	return fields(
		"entry", fmt.Sprint(e.ID), "consumer", e.Consumer, "topic", e.Topic, "message id", e.MessageID, "tenant", e.Tenant,
		"state", e.State, "reason", e.Reason, "error", e.Error, "error type", e.ErrorType, "group", e.Group,
		"attempts", fmt.Sprint(e.Attempts), "crashes", number(int64(e.Crashes)), "replays", number(int64(e.Replays)),
		"blocks", blocks, "damaged", e.Damaged, "edited from", number(e.EditedFrom), "replay", number(e.ReplayID),
		"stored", at(e.CreatedAt), "first failed", at(e.FirstFailedAt), "last failed", at(e.LastFailedAt), "finished", at(e.FinishedAt),
	)
}

// number returns n as text, or "" if n is zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// oneID returns an error unless there is exactly one argument.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s needs one ID, and got %d arguments", cmd.CommandPath(), len(args))
	}
	_, err := parseIDs(args)
	return err
}
