package outboxrow

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DecodeMetadata returns the metadata of a row, or an error if text is not a JSON
// object of strings. Nearly all metadata contains no escapes. Such metadata is decoded
// without encoding/json, which would take more time than all other work of the
// forwarder on a message.
func DecodeMetadata(text []byte) (message.Metadata, error) {
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

// decodePlain decodes JSON that is valid and contains no escapes. For other JSON, it
// returns false.
func decodePlain(text string) (message.Metadata, bool) {
	const stamps = 2 // the forwarder adds them
	metadata := make(message.Metadata, strings.Count(text, `"`)/4+stamps)
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
