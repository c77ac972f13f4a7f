package forwarder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
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
	metadata, err := decode(m.Metadata)
	if err != nil {
		return nil, rowError{"metadata is not an object of strings", err}
	}
	return metadata, nil
}

// decode reads metadata. What nearly all messages have, strings without
// escapes, is read without encoding/json: that alone took more time than the
// rest of what the forwarder does for a message.
func decode(text []byte) (message.Metadata, error) {
	if bytes.IndexByte(text, '\\') < 0 {
		if metadata, ok := decodePlain(string(text)); ok {
			return metadata, nil
		}
	}
	metadata := message.Metadata{}
	if err := json.Unmarshal(text, &metadata); err != nil {
		return nil, err
	}
	if metadata == nil { // null
		metadata = message.Metadata{}
	}
	return metadata, nil
}

// decodePlain reads valid JSON without escapes, or gives up.
func decodePlain(text string) (message.Metadata, bool) {
	metadata := make(message.Metadata, strings.Count(text, `"`)/4)
	rest, ok := strings.CutPrefix(text, "{")
	if !ok || rest == "}" {
		return metadata, ok
	}
	for {
		var key, value string
		if key, rest, ok = cutString(rest); !ok {
			return nil, false
		}
		if rest, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), ":"); !ok {
			return nil, false
		}
		if value, rest, ok = cutString(rest); !ok {
			return nil, false
		}
		metadata[key] = value
		switch rest = strings.TrimLeft(rest, " "); {
		case rest == "}":
			return metadata, true
		case strings.HasPrefix(rest, ","):
			rest = rest[1:]
		default:
			return nil, false
		}
	}
}

func cutString(text string) (value, rest string, ok bool) {
	text, ok = strings.CutPrefix(strings.TrimLeft(text, " "), `"`)
	if !ok {
		return "", "", false
	}
	return strings.Cut(text, `"`)
}
