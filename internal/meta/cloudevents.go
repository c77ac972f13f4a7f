package meta

import (
	"encoding/json"
	"strings"
)

// ContentType is the metadata key of the media type of a CloudEvent.
const ContentType = "content-type"

// EventPrefix is the prefix of attributes in the metadata of a CloudEvent, which the protocol
// binding for AMQP also uses. Other bindings have other prefixes.
const EventPrefix = "cloudEvents:"

var eventPrefixes = [...]string{EventPrefix, "cloudEvents_", "ce_", "ce-"} // AMQP, AMQP for JMS, Kafka, HTTP and NATS

// EventAttribute returns an attribute from the metadata of a CloudEvent in binary mode, or "".
func EventAttribute(metadata map[string]string, name string) string {
	for _, prefix := range eventPrefixes {
		if value, ok := metadata[prefix+name]; ok {
			return value
		}
	}
	return metadata["Ce-"+strings.ToUpper(name[:1])+name[1:]] // as net/http writes the names of headers
}

// EventContentType returns the media type in metadata if it belongs to a CloudEvent, or "".
func EventContentType(metadata map[string]string) string {
	mediaType := metadata[ContentType]
	if mediaType == "" {
		mediaType = metadata["Content-Type"]
	}
	if mediaType == "" || !isEventType(mediaType) && EventAttribute(metadata, "specversion") == "" {
		return ""
	}
	return mediaType
}

func isEventType(mediaType string) bool {
	return strings.HasPrefix(mediaType, "application/cloudevents")
}

// Structured reports whether mediaType is that of one CloudEvent in JSON.
func Structured(mediaType string) bool {
	name, _, _ := strings.Cut(mediaType, ";")
	return strings.TrimSpace(name) == "application/cloudevents+json"
}

// StructuredID returns the id of a CloudEvent in JSON, or "".
func StructuredID(payload []byte) string {
	var event struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(payload, &event) != nil {
		return ""
	}
	return event.ID
}
