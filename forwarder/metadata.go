package forwarder

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/outboxrow"
)

// rowError says that a row is not what the outbox writes.
type rowError struct {
	what string
	err  error // or nil
}

func (e rowError) Error() string {
	if e.err == nil {
		return "forwarder: " + e.what
	}
	return fmt.Sprintf("forwarder: %s: %v", e.what, e.err)
}
func (e rowError) Unwrap() error    { return e.err }
func (rowError) Unacceptable() bool { return true }

// check returns the metadata of a message that can be sent. SQLite takes any bytes
// for text, which lists of rows cannot name: such a row would never be deleted.
func check(m *dispatch.Message) (message.Metadata, error) {
	for _, field := range []struct{ name, text string }{
		{"message_id", m.ID}, {"topic", m.Topic}, {"ordering_key", m.Key},
	} {
		if !utf8.ValidString(field.text) || strings.IndexByte(field.text, 0) >= 0 {
			return nil, rowError{what: field.name + " is not valid text"}
		}
	}
	metadata, err := outboxrow.DecodeMetadata(m.Metadata)
	if err != nil {
		return nil, rowError{"metadata is not an object of strings", err}
	}
	return metadata, nil
}
