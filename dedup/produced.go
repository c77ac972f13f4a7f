package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/meta"
)

// cause is what a message passes on to those that its handler produces.
type cause struct {
	id, tenant string
	own        string     // what caused the message itself
	span       trace.Span // of the handling, or of whoever sent the message
}

func causeOf(msg *message.Message) cause {
	return cause{msg.UUID, msg.Metadata[meta.TenantID], msg.Metadata[meta.CausationID], trace.SpanFromContext(msg.Context())}
}

// mark passes on what the handler has not said itself.
func (c cause) mark(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if c.own != "" && msg.Metadata[meta.CausationID] == c.own { // the handler has copied all metadata
		delete(msg.Metadata, meta.CausationID)
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

// addressed is a produced message and where it is to go.
type addressed struct {
	topic string
	msg   *message.Message
}

// address finds the topics of what a handler produced under ctx.
func (i *Inbox) address(ctx context.Context, consumer string, produced []*message.Message) ([]addressed, error) {
	if len(produced) > 0 && i.config.Outbox == nil {
		return nil, disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: consumer %q: %w", consumer, ErrNoOutbox))
	}
	all := make([]addressed, len(produced))
	for n, msg := range produced {
		topic := message.PublishTopicFromCtx(ctx)
		if own := msg.Metadata[meta.Topic]; own != "" {
			topic = own
		}
		if topic == "" {
			return nil, disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: consumer %q: message %d: %w", consumer, n, ErrNoTopic))
		}
		all[n] = addressed{topic, msg}
	}
	return all, nil
}

// store puts what handlers produced into the outbox, in their transaction.
// Returned to the router it would be published after the commit, and lost if
// the process died in between. Neighbours with the same topic share a statement.
func (i *Inbox) store(tx *sql.Tx, consumer string, all []addressed) error {
	if len(all) == 0 {
		return nil
	}
	events := i.config.Outbox(tx)
	for len(all) > 0 {
		topic := all[0].topic
		var msgs []*message.Message
		for len(all) > 0 && all[0].topic == topic {
			msgs = append(msgs, all[0].msg)
			all = all[1:]
		}
		if err := events.Publish(topic, msgs...); err != nil {
			if errors.Is(err, sql.ErrTxDone) {
				return endedByHandler(err)
			}
			return fmt.Errorf("dedup: consumer %q: %d messages for %q: %w", consumer, len(msgs), topic, err)
		}
	}
	return nil
}
