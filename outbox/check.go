package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/usercode"
)

const (
	// maxName limits ids, topics and ordering keys, in bytes, because they are in the indexes of
	// several tables, also in a consumer's database.
	maxName = 255

	// maxMetadata limits all metadata keys and values of a message, in bytes, because the forwarder
	// decodes them. Brokers have lower limits, see Config.Check.
	maxMetadata = 1 << 20
)

// check returns an error that names all invalid fields of all messages.
func (o *Outbox) check(topic string, msgs []*message.Message, call *call) ([]record, error) {
	records := make([]record, len(msgs))
	var errs []error
	for i, msg := range msgs {
		c := checker{index: i, errs: &errs}
		if msg == nil {
			c.refuse(field{name: "message"}, "is nil")
			continue
		}
		msg = withoutDelivery(msg)
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
			if err := usercode.Guarded(func() error { return o.config.Check(topic, msg) }); err != nil {
				c.refused(err)
			}
		}
		if len(errs) == before {
			records[i] = newRecord(msg, call.metadata(msg), due)
		}
	}
	return records, errors.Join(errs...)
}

// withoutDelivery does not change msg, which belongs to the caller. See meta.WithoutDelivery.
func withoutDelivery(msg *message.Message) *message.Message {
	metadata := meta.WithoutDelivery(msg.Metadata)
	if len(metadata) == len(msg.Metadata) {
		return msg
	}
	own := message.NewMessage(msg.UUID, msg.Payload)
	own.Metadata = metadata
	own.SetContext(msg.Context())
	return own
}

type checker struct {
	index int
	id    string
	errs  *[]error
}

// field is converted to a string only for an error.
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

// A text column and JSON cannot store these.
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

// DueAt has precedence over a delay of Watermill.
func (c checker) due(metadata message.Metadata) time.Time {
	f := metadataField(DueAt)
	var (
		at    time.Time
		keyed bool
	)
	if text, ok := metadata[DueAt]; ok {
		var err error
		if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			c.refuse(f, "is not a time in RFC 3339")
			return time.Time{}
		}
		_, keyed = metadata[OrderingKey]
	} else if at, f = c.delayed(metadata); at.After(time.Now()) {
		_, keyed = metadata[OrderingKey]
	}
	if keyed {
		c.refuse(f, "contradicts the ordering key: a delayed message cannot keep its place")
	}
	return at.UTC() // PostgreSQL refuses offsets of 16 hours and more
}

// delayed returns the end of the delay of Watermill's package components/delay and its field, or
// the zero time.
//
// DelayedUntil is rounded down, so the delay ends less than a second later. Usually the message is
// published as soon as the keys are set, and DelayedFor gives the exact time.
func (c checker) delayed(metadata message.Metadata) (end time.Time, f field) {
	until, ok := metadata[meta.DelayedUntil]
	f = metadataField(meta.DelayedUntil)
	if ok {
		at, err := time.Parse(time.RFC3339Nano, until)
		if err != nil {
			c.refuse(f, "is not a time in RFC 3339")
			return time.Time{}, f
		}
		end = at
	}
	text, hasDuration := metadata[meta.DelayedFor]
	if !hasDuration {
		return end, f
	}
	end = end.Add(time.Second - 1)
	duration, err := time.ParseDuration(text)
	if err != nil {
		c.refuse(metadataField(meta.DelayedFor), "is not a duration, such as 5m0s")
		return time.Time{}, f
	}
	if fromNow := time.Now().Add(duration); !ok || fromNow.Before(end) {
		end = fromNow
	}
	return end, f
}

var (
	// ErrInvalid means that the outbox refused messages, and stored no message of the call. The
	// error wraps a [FieldError] for each reason. No later attempt can store such a message, so if
	// a handler returns it, its message goes to quarantine immediately.
	ErrInvalid = usercode.WithMark(usercode.Permanent, errors.New("outbox: invalid message"))

	// ErrNoTransaction means that the transaction is nil. Another connection would publish the
	// events even if the service's transaction is rolled back.
	ErrNoTransaction = errors.New("outbox: no transaction: the *sql.Tx is nil")

	// ErrCommitUnknown means that the connection was lost during the commit. Either all writes took
	// effect, or none: check whether your rows exist before you repeat the work.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// FieldError is one invalid field of one message. It unwraps to [ErrInvalid] and to the error of
// [Config].Check, if any.
type FieldError struct {
	// Index is the index of the message in the call, from 0.
	Index int

	// MessageID may be the invalid field.
	MessageID string

	// Field is "id", "topic", "payload", "metadata", or "metadata" followed by a quoted key, or
	// "message", also if Config.Check refused it.
	Field string

	// Reason contains no payload and no metadata value, unless the error of Config.Check does.
	Reason string

	cause error // error of Config.Check, or nil
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("outbox: message %d (id %s): %s %s", e.Index, quote(e.MessageID), e.Field, e.Reason)
}

// Unwrap returns [ErrInvalid] and the error of [Config].Check, if any.
func (e *FieldError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.cause}
}

func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q... of %d bytes", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
