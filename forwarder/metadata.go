package forwarder

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/outboxrow"
)

// rowError means that a row contains data that the outbox would not write, or that the
// publisher cannot send.
type rowError struct {
	what string
	err  error // the cause, or nil
}

func (e rowError) Error() string {
	if e.err == nil {
		return "forwarder: " + e.what
	}
	return fmt.Sprintf("forwarder: %s: %v", e.what, e.err)
}
func (e rowError) Unwrap() error    { return e.err }
func (rowError) Unacceptable() bool { return true }

// check returns the metadata of a message, or an error if the message cannot be sent.
// It checks that all strings are valid UTF-8 without NUL. A text column of SQLite
// accepts any bytes, but a list of ids in a statement does not. A row with an invalid
// id could therefore not be deleted after the message was sent.
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
