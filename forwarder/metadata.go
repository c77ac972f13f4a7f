package forwarder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// metadataError says that the row's metadata is not what the outbox writes.
type metadataError struct{ err error }

func (e metadataError) Error() string {
	return fmt.Sprintf("forwarder: metadata is not an object of strings: %v", e.err)
}
func (e metadataError) Unwrap() error    { return e.err }
func (metadataError) Unacceptable() bool { return true }

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
