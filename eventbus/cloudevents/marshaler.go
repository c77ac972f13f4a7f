package cloudevents

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/usercode"
)

const specVersion = "1.0"

// Marshaler turns events into CloudEvents, and reads them. It implements
// cqrs.CommandEventMarshaler.
//
// Unmarshal accepts binary and structured mode. Its errors are permanent: a message that is no
// CloudEvent, or whose data has another media type or cannot be read, goes to the quarantine at
// once.
type Marshaler struct {
	// Data marshals the data of an event. Its name of an event is the CloudEvent's type, and its id
	// the CloudEvent's id. Required, for example cqrs.JSONMarshaler{NewUUID: outbox.NewID}.
	Data eventbus.CommandEventMarshaler

	// Source says which system sends the events, for example "/shop". It is required to send. Source
	// and id together must be unique, and an id that two sources share on one topic is a collision.
	Source string

	// ContentType is the media type of the data. Defaults to "application/json".
	ContentType string

	// Structured sends structured events instead of binary ones.
	Structured bool

	// Prefix of the attributes in the metadata of binary events: "ce_" for Kafka, "ce-" for HTTP and
	// NATS. Defaults to "cloudEvents:", as for AMQP. A receiver accepts all of them.
	Prefix string

	// Attributes returns more attributes of an event, such as its subject. Names consist of lower-case
	// letters and digits. May be nil.
	Attributes func(event any) map[string]string
}

func (m Marshaler) contentType() string {
	if m.ContentType == "" {
		return "application/json"
	}
	return m.ContentType
}

// Marshal returns the message of an event. It returns an error if an attribute is invalid.
func (m Marshaler) Marshal(event any) (*message.Message, error) {
	msg, err := m.Data.Marshal(event)
	if err != nil {
		return nil, err
	}
	attributes := map[string]string{"time": time.Now().UTC().Format(time.RFC3339Nano)}
	if m.Attributes != nil {
		maps.Copy(attributes, m.Attributes(event))
	}
	attributes["specversion"], attributes["id"] = specVersion, msg.UUID
	attributes["source"], attributes["type"] = m.Source, m.Data.Name(event)
	if err := check(attributes); err != nil {
		return nil, fmt.Errorf("cloudevents: event %T: %w", event, err)
	}
	if m.Structured {
		attributes["datacontenttype"] = m.contentType()
		msg.Payload, err = encode(attributes, msg.Payload)
		if err != nil {
			return nil, fmt.Errorf("cloudevents: event %T: %w", event, err)
		}
		msg.Metadata.Set(meta.ContentType, structuredType)
		return msg, nil
	}
	prefix := m.Prefix
	if prefix == "" {
		prefix = meta.EventPrefix
	}
	for name, value := range attributes {
		msg.Metadata.Set(prefix+name, value)
	}
	msg.Metadata.Set(meta.ContentType, m.contentType())
	return msg, nil
}

func check(attributes map[string]string) error {
	var errs []error
	for _, name := range []string{"id", "source", "type"} {
		if attributes[name] == "" {
			errs = append(errs, fmt.Errorf("the %s is empty", name))
		}
	}
	for name, value := range attributes {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || name == "data" || name == "datacontenttype" {
			errs = append(errs, fmt.Errorf("the attribute %q is not allowed: use lower-case letters and digits, "+
				"and neither data nor datacontenttype", name))
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0x9f }) || !utf8.ValidString(value) {
			errs = append(errs, fmt.Errorf("the attribute %s is %q: control characters are not allowed", name, value))
		}
	}
	return errors.Join(errs...)
}

// Unmarshal unmarshals the data of the CloudEvent in msg into event, which is a pointer.
func (m Marshaler) Unmarshal(msg *message.Message, event any) error {
	if err := m.unmarshal(msg, event); err != nil {
		return usercode.WithMark(usercode.Permanent, fmt.Errorf("cloudevents: %w", err))
	}
	return nil
}

func (m Marshaler) unmarshal(msg *message.Message, event any) error {
	received, err := read(msg)
	if err != nil {
		return err
	}
	if version := received.attribute("specversion"); version != specVersion {
		return fmt.Errorf("the specversion is %q, want %q", version, specVersion)
	}
	data, contentType, err := received.data()
	if err != nil {
		return err
	}
	if got, want := mediaType(contentType), mediaType(m.contentType()); got != want && got != "" {
		return fmt.Errorf("the data is %q, want %q", got, want)
	}
	inner := message.NewMessage(msg.UUID, data)
	inner.Metadata = msg.Metadata
	inner.SetContext(msg.Context())
	return m.Data.Unmarshal(inner, event)
}

// Name returns the type of an event.
func (m Marshaler) Name(event any) string { return m.Data.Name(event) }

// NameFromMessage returns the type of the CloudEvent in msg, or "" if msg contains none.
func (m Marshaler) NameFromMessage(msg *message.Message) string { return Attribute(msg, "type") }

// Attribute returns an attribute of the CloudEvent in msg, such as "source" or "subject", or "" if it
// has none. An attribute that is no string in a structured event is returned as in JSON.
func Attribute(msg *message.Message, name string) string {
	received, err := read(msg)
	if err != nil || name == "" {
		return ""
	}
	return received.attribute(name)
}

// TakeID sets the id of a message that has none to the id of its CloudEvent. It is for transports
// other than RabbitMQ that receive events from other systems:
//
//	decorate := message.MessageTransformSubscriberDecorator(cloudevents.TakeID)
//	sub, err := decorate(sub)
func TakeID(msg *message.Message) {
	if msg.UUID == "" {
		msg.UUID = Attribute(msg, "id")
	}
}
