package fields

import (
	"maps"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/meta"
)

// maxField is the maximum length of a value from the metadata in a log line, in bytes.
// Any sender can write the metadata, so a value may be very long.
const maxField = 255

// ofMetadata maps metadata keys to log fields. Other metadata is not logged.
var ofMetadata = map[string]string{
	meta.TenantID:         "tenant",
	meta.AggregateType:    "aggregate_type",
	meta.AggregateID:      "aggregate_id",
	meta.AggregateVersion: "version",
	meta.EventType:        "event_type",
}

// Message returns the log fields that identify a message: its id, and its tenant,
// aggregate, version and event type if metadata contains them. The parameter more
// contains further fields for the result.
func Message(id string, metadata map[string]string, more watermill.LogFields) watermill.LogFields {
	named := make(watermill.LogFields, len(more)+1+len(ofMetadata))
	for key, field := range ofMetadata {
		if value := metadata[key]; value != "" {
			named[field] = strings.ToValidUTF8(value[:min(len(value), maxField)], "\uFFFD")
		}
	}
	named["message_uuid"] = id
	maps.Copy(named, more)
	return named
}
