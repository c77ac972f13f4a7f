package dedup

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/verdict"
)

// store puts what a handler produced into the outbox, in the handler's
// transaction. Returned to the router it would be published after the commit,
// and lost if the process died in between.
func (i *Inbox) store(ctx context.Context, tx *sql.Tx, cause *message.Message, consumer string, produced []*message.Message) error {
	if len(produced) == 0 {
		return nil
	}
	if i.config.Outbox == nil {
		return verdict.Forever(verdict.ReasonPermanent, fmt.Errorf("dedup: consumer %q: %w", consumer, ErrNoOutbox))
	}
	events := i.config.Outbox(tx)
	for n, msg := range produced {
		topic := message.PublishTopicFromCtx(ctx)
		if own := msg.Metadata[meta.Topic]; own != "" {
			topic = own
		}
		if topic == "" {
			return verdict.Forever(verdict.ReasonPermanent, fmt.Errorf("dedup: consumer %q: message %d: %w", consumer, n, ErrNoTopic))
		}
		if msg.Metadata[meta.CausationID] == "" {
			if msg.Metadata == nil {
				msg.Metadata = message.Metadata{}
			}
			msg.Metadata[meta.CausationID] = cause.UUID
		}
		if err := events.Publish(topic, msg); err != nil {
			return i.handlerError(tx, fmt.Errorf("dedup: consumer %q: message %d for %q: %w", consumer, n, topic, err))
		}
	}
	return nil
}
