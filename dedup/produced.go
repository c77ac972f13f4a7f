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

// cause contains the data of a message that are copied to the messages that its handler
// produces.
type cause struct {
	id, tenant string
	parent     string     // causation id of the handled message
	span       trace.Span // span of the handler; if no span is recorded here, span of the sender
}

func causeOf(msg *message.Message) cause {
	return cause{msg.UUID, msg.Metadata[meta.TenantID], msg.Metadata[meta.CausationID], trace.SpanFromContext(msg.Context())}
}

// mark copies the data into the metadata of msg. It does not change values that the
// handler has set.
func (c cause) mark(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if c.parent != "" && msg.Metadata[meta.CausationID] == c.parent { // the handler has copied all metadata
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

// addressed is a produced message with its topic.
type addressed struct {
	topic string
	msg   *message.Message
}

// address determines the topics of the produced messages. The topic of a message is in
// its metadata. A message without such a topic gets the publish topic of the handler in
// ctx.
func (i *Inbox) address(ctx context.Context, consumer string, produced []*message.Message) ([]addressed, error) {
	if len(produced) > 0 && i.config.Outbox == nil {
		return nil, disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: consumer %q: %w", consumer, errNoOutbox))
	}
	all := make([]addressed, len(produced))
	for n, msg := range produced {
		topic := message.PublishTopicFromCtx(ctx)
		if own := msg.Metadata[meta.Topic]; own != "" {
			topic = own
		}
		if topic == "" {
			return nil, disposition.Forever(disposition.ReasonPermanent, fmt.Errorf("dedup: consumer %q: message %d: %w", consumer, n, errNoTopic))
		}
		all[n] = addressed{topic, msg}
	}
	return all, nil
}

// store inserts produced messages into the outbox, in the transaction of their handler.
// If the middleware returned them instead, the router would publish them after the
// commit, and they would be lost if the process died before that. Consecutive messages
// with the same topic are inserted with one statement.
func (i *Inbox) store(tx *sql.Tx, consumer string, all []addressed) error {
	if len(all) == 0 {
		return nil
	}
	publisher := i.config.Outbox(tx)
	for len(all) > 0 {
		topic := all[0].topic
		var msgs []*message.Message
		for len(all) > 0 && all[0].topic == topic {
			msgs = append(msgs, all[0].msg)
			all = all[1:]
		}
		if err := publisher.Publish(topic, msgs...); err != nil {
			if errors.Is(err, sql.ErrTxDone) {
				return endedByHandler(err)
			}
			return fmt.Errorf("dedup: consumer %q: %d messages for %q: %w", consumer, len(msgs), topic, err)
		}
	}
	return nil
}
