package meta

import (
	"maps"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// maxField is in bytes. Any sender can write the metadata, so a value may be very long.
const maxField = 255

// ofMetadata maps metadata keys to log fields. Other metadata is not logged.
var ofMetadata = map[string]string{
	TenantID:         "tenant",
	AggregateType:    "aggregate_type",
	AggregateID:      "aggregate_id",
	AggregateVersion: "version",
	EventType:        "event_type",
}

// LogFields returns the log fields that identify a message: its id, tenant, aggregate, version and
// event type, and more.
func LogFields(id string, metadata map[string]string, more watermill.LogFields) watermill.LogFields {
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
