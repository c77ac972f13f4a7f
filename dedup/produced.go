package dedup

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/verdict"
)

// cause is what a message passes on to those that its handler produces.
type cause struct {
	id, tenant string
	span       trace.Span // of the handling, or of whoever sent the message
}

func causeOf(msg *message.Message) cause {
	return cause{msg.UUID, msg.Metadata[meta.TenantID], trace.SpanFromContext(msg.Context())}
}

// mark passes on what the handler has not said itself.
func (c cause) mark(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	for key, value := range map[string]string{meta.CausationID: c.id, meta.TenantID: c.tenant} {
		if msg.Metadata[key] == "" && value != "" {
			msg.Metadata[key] = value
		}
	}
	if !trace.SpanContextFromContext(msg.Context()).IsValid() {
		msg.SetContext(trace.ContextWithSpan(msg.Context(), c.span))
	}
}

// store puts what a handler produced into the outbox, in the handler's
// transaction. Returned to the router it would be published after the commit,
// and lost if the process died in between.
func (i *Inbox) store(ctx context.Context, tx *sql.Tx, from cause, consumer string, produced []*message.Message) error {
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
		from.mark(msg)
		if err := events.Publish(topic, msg); err != nil {
			return i.handlerError(tx, fmt.Errorf("dedup: consumer %q: message %d for %q: %w", consumer, n, topic, err))
		}
	}
	return nil
}
