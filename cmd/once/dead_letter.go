package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
)

// outboxJSON contains the fields that dead letters and sent messages have in common.
// Lists leave out Metadata and the payload.
type outboxJSON struct {
	ID          int64             `json:"id"`
	Position    int64             `json:"position"`
	MessageID   string            `json:"message_id"`
	Topic       string            `json:"topic"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Size        int               `json:"size"`
	CreatedAt   time.Time         `json:"created_at"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	content
}

func outboxOf(m *deadletter.Message) outboxJSON {
	return outboxJSON{
		ID: m.ID, Position: m.Position, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey, Size: m.Size, CreatedAt: m.CreatedAt,
	}
}

// whole adds the metadata and the payload of m.
func (j *outboxJSON) whole(m *deadletter.Message) {
	j.Metadata, j.content = m.Metadata, contentOf(m.Payload)
}

// letterJSON is a dead letter.
type letterJSON struct {
	outboxJSON

	Attempts  int       `json:"attempts"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error"`
	MaybeSent bool      `json:"maybe_sent"`
	BlocksKey bool      `json:"blocks_key"`
	DiedAt    time.Time `json:"died_at"`
}

// lettersJSON is the JSON output of "once dead list".
type lettersJSON struct {
	Letters []letterJSON `json:"letters"`
	Next    int64        `json:"next,omitempty"` // --after of the next page
}

func letterOf(l *deadletter.Letter) letterJSON {
	return letterJSON{
		outboxJSON: outboxOf(&l.Message), Attempts: l.Attempts, Reason: l.Reason, Error: l.Error,
		MaybeSent: l.Unknown, BlocksKey: l.BlocksKey, DiedAt: l.LastFailedAt,
	}
}

func (a *app) deadShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with its message",
		Args:  oneID,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			letter, err := l.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := letterOf(&letter)
			j.whole(&letter.Message)
			return a.print(j, letterText(&j)+messageText(letter.Metadata, letter.Payload))
		}),
	}
}

// letterText returns a dead letter as text, without metadata and payload.
func letterText(l *letterJSON) string {
	notes := ""
	if l.MaybeSent {
		notes = "may have been sent all the same"
	}
	blocks := ""
	if l.BlocksKey {
		blocks = "later messages of its ordering key wait for it"
	}
	return fields(
		"dead letter", fmt.Sprint(l.ID), "topic", l.Topic, "message id", l.MessageID, "ordering key", l.OrderingKey,
		"reason", l.Reason, "error", l.Error, "attempts", fmt.Sprint(l.Attempts), "note", notes, "blocks", blocks,
		"written", at(l.CreatedAt), "died", at(l.DiedAt), "position", fmt.Sprint(l.Position),
	)
}
