package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
)

const (
	// maxName is the maximum length of ids, topics and ordering keys, in bytes. These
	// values are in the indexes of several tables, including tables in a consumer's
	// database.
	maxName = 255

	// maxMetadata is the maximum size of all metadata keys and values of a message, in
	// bytes. The forwarder decodes the metadata of each message. Brokers have lower limits,
	// see Config.Check.
	maxMetadata = 1 << 20
)

// check returns the rows for the messages. If messages are invalid, the error names all
// invalid fields of all messages.
func (o *Outbox) check(topic string, msgs []*message.Message, call *call) ([]record, error) {
	records := make([]record, len(msgs))
	var errs []error
	for i, msg := range msgs {
		c := checker{index: i, errs: &errs}
		if msg == nil {
			c.refuse(field{name: "message"}, "is nil")
			continue
		}
		before := len(errs)
		c.id = msg.UUID
		c.name(field{name: "id"}, msg.UUID)
		if i == 0 { // all messages have the same topic
			c.name(field{name: "topic"}, topic)
		}
		if len(msg.Payload) > o.config.MaxPayload {
			c.refuse(field{name: "payload"}, "has %d bytes, the limit is %d", len(msg.Payload), o.config.MaxPayload)
		}
		c.metadata(msg.Metadata)
		due := c.due(msg.Metadata)
		if o.config.Check != nil {
			if err := o.config.Check(topic, msg); err != nil {
				c.refused(err)
			}
		}
		if len(errs) == before {
			records[i] = newRecord(msg, call.metadata(msg), due)
		}
	}
	return records, errors.Join(errs...)
}

// checker collects the invalid fields of a message.
type checker struct {
	index int
	id    string
	errs  *[]error
}

// field is a part of a message. It is converted to a string only if an error needs the
// string.
type field struct {
	name  string
	key   string // metadata key; only if keyed is true
	keyed bool
}

func (f field) String() string {
	if f.keyed {
		return f.name + " " + quote(f.key)
	}
	return f.name
}

func metadataField(key string) field { return field{name: "metadata", key: key, keyed: true} }

func (c checker) refuse(f field, reason string, args ...any) {
	*c.errs = append(*c.errs, &FieldError{
		Index: c.index, MessageID: c.id, Field: f.String(), Reason: fmt.Sprintf(reason, args...),
	})
}

// refused adds the error of Config.Check to the invalid fields.
func (c checker) refused(err error) {
	*c.errs = append(*c.errs, &FieldError{
		Index: c.index, MessageID: c.id, Field: "message", Reason: "is refused by Config.Check: " + err.Error(), cause: err,
	})
}

func (c checker) name(f field, value string) {
	if value == "" {
		c.refuse(f, "is empty")
	}
	if len(value) > maxName {
		c.refuse(f, "has %d bytes, the limit is %d", len(value), maxName)
	}
	c.text(f, value)
}

// text adds the field f to the invalid fields if its value cannot be stored in a text
// column or in JSON.
func (c checker) text(f field, value string) {
	switch {
	case !utf8.ValidString(value):
		c.refuse(f, "is not valid UTF-8")
	case strings.IndexByte(value, 0) >= 0:
		c.refuse(f, "contains a NUL")
	}
}

func (c checker) metadata(metadata message.Metadata) {
	size := 0
	for key, value := range metadata {
		size += len(key) + len(value)
		f := metadataField(key)
		c.text(f, key)
		if !meta.Known(key) {
			c.refuse(f, "is unknown: names that begin with once_ are reserved for this module, rename it")
		}
		if key == OrderingKey {
			c.name(f, value)
		} else {
			c.text(f, value)
		}
	}
	if size > maxMetadata {
		c.refuse(field{name: "metadata"}, "has %d bytes, the limit is %d", size, maxMetadata)
	}
}

// due returns the due time in metadata, or the zero time if metadata has no due time.
func (c checker) due(metadata message.Metadata) time.Time {
	text, ok := metadata[DueAt]
	if !ok {
		return time.Time{}
	}
	f := metadataField(DueAt)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		c.refuse(f, "is not a time in RFC 3339")
		return time.Time{}
	}
	if _, keyed := metadata[OrderingKey]; keyed {
		c.refuse(f, "contradicts the ordering key: a delayed message cannot keep its place")
	}
	return at.UTC() // PostgreSQL refuses offsets of 16 hours and more
}
