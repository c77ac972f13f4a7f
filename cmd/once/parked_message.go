package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/parked"
)

// parkedJSON describes a parked message. Lists leave out Metadata and the payload.
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

// parkedListJSON is the JSON output of "once parked list".
type parkedListJSON struct {
	Messages []parkedJSON `json:"messages"`
	Next     int64        `json:"next,omitempty"` // --after of the next page
}

func parkedOf(m *parked.Message) parkedJSON {
	j := parkedJSON{
		ID: m.ID, Consumer: m.Consumer, Topic: m.Topic, MessageID: m.MessageID, OrderingKey: m.OrderingKey, Tenant: m.Tenant,
		State: string(m.State), DueAt: m.DueAt, Claimed: m.Claimed, ClaimedBy: m.ClaimedBy,
		Attempts: m.Attempts, Crashes: m.Crashes, Replays: m.Replays, Early: m.Early, BlockedBy: m.BlockedBy,
		Reason: m.Reason, Error: m.Error, ErrorType: m.ErrorType, Size: m.Size,
		CreatedAt: m.CreatedAt, FirstFailedAt: m.FirstFailedAt, LastFailedAt: m.LastFailedAt, FinishedAt: m.FinishedAt,
	}
	if m.MessageErr != nil {
		j.Damaged = m.MessageErr.Error()
	}
	return j
}

// waitsFor returns a short text that says what a message waits for. If the message does
// not wait, it returns "".
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
		RunE: a.withParked(func(ctx context.Context, m *parked.Messages, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			one, err := m.Get(ctx, ids[0])
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

// parkedText returns a message as text, without metadata and payload.
func parkedText(m *parked.Message, damaged string) string {
	return fields(
		"id", fmt.Sprint(m.ID), "consumer", m.Consumer, "topic", m.Topic, "message id", m.MessageID, "ordering key", m.OrderingKey,
		"tenant", m.Tenant, "state", string(m.State), "waits for", waitsFor(m), "claimed by", m.ClaimedBy, "reason", m.Reason,
		"error", m.Error, "error type", m.ErrorType, "attempts", fmt.Sprint(m.Attempts), "crashes", number(int64(m.Crashes)),
		"replays", number(int64(m.Replays)), "damaged", damaged, "size", fmt.Sprint(m.Size), "stored", at(m.CreatedAt),
		"first failed", at(m.FirstFailedAt), "last failed", at(m.LastFailedAt), "finished", at(m.FinishedAt),
	)
}
