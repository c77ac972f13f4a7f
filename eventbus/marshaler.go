package eventbus

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/usercode"
)

// CommandEventMarshaler is cqrs.CommandEventMarshaler, declared again so that this module does not
// depend on what Watermill's cqrs component needs.
type CommandEventMarshaler interface {
	Marshal(v any) (*message.Message, error)
	Unmarshal(msg *message.Message, v any) error
	Name(v any) string
	NameFromMessage(msg *message.Message) string
}

// Marshaler makes the errors of a marshaler's Unmarshal permanent: a retry would not help, so the
// message goes to the quarantine immediately. Correct the payload there and replay it, or replay it
// after you have deployed a new version.
type Marshaler struct {
	CommandEventMarshaler
}

// Unmarshal unmarshals the payload of msg into v. Its errors are permanent.
func (m Marshaler) Unmarshal(msg *message.Message, v any) error {
	if err := m.CommandEventMarshaler.Unmarshal(msg, v); err != nil {
		return usercode.WithMark(usercode.Permanent, fmt.Errorf("eventbus: the payload does not fit %T: %w", v, err))
	}
	return nil
}

// KnownEvents returns a middleware that sends a message of another type than the given events to
// the quarantine immediately. Without it, Watermill's event processor acks the message
// (AckOnUnknownEvent), or its error is retried like any other.
//
// Add it to the handlers of a topic that contains only these events, after the middlewares of
// packages poison and retry, so that it runs inside of them. KnownEvents panics if events is empty.
func KnownEvents(marshaler CommandEventMarshaler, events ...any) message.HandlerMiddleware {
	if len(events) == 0 {
		panic("eventbus: KnownEvents: no events: all messages would be refused")
	}
	names := make([]string, len(events))
	for i, event := range events {
		names[i] = marshaler.Name(event)
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			name := marshaler.NameFromMessage(msg)
			if slices.Contains(names, name) {
				return h(msg)
			}
			err := fmt.Errorf("eventbus: no handler for event %q, only for %q", name, names)
			if name == "" {
				err = errors.New("eventbus: the message has no event name: was it published with the same marshaler?")
			}
			return nil, usercode.WithMark(usercode.Permanent, err)
		}
	}
}
