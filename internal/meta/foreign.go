package meta

import (
	"maps"
	"strings"
)

// prefix begins every key of this module. Other keys must not begin with it.
const prefix = "once_"

// Travels reports whether a metadata key travels from service to service. Keys of
// other modules travel, and so do keys of this module that describe the message. The
// function lists the allowed keys, so a new key does not travel until you add it.
//
// All other keys concern one step only. Topic and DueAt are instructions for an
// outbox, Redelivered and DeliveryCount describe one delivery, and EditedFrom
// describes the edit of one message. From another service they would be instructions
// or claims of a stranger.
func Travels(key string) bool {
	if !strings.HasPrefix(key, prefix) {
		return true
	}
	switch key {
	case OrderingKey, TenantID, AggregateType, AggregateID, AggregateVersion, EventType, CausationID, CreatedAt, PublishedAt,
		QuarantineReason, QuarantineConsumer, QuarantineTopic, QuarantineEntry, QuarantineMessage, QuarantineError:
		return true
	}
	return false
}

// Known reports whether a key is a key of this module with a meaning, or a key of
// another module.
func Known(key string) bool {
	switch key {
	case Topic, DueAt, Redelivered, DeliveryCount, EditedFrom:
		return true
	}
	return Travels(key)
}

// Received returns the metadata that the handler of a delivered message may see. It
// removes keys that would steer the messages that a handler produces, and keys of
// this module that this version does not know: handlers copy metadata to their
// messages, and anyone with access to the broker can write any metadata.
//
// Keys that describe the delivery stay. Received returns metadata itself if it
// removes nothing, and a copy otherwise, because the original may be stored
// unchanged.
func Received(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool {
		switch key {
		case Redelivered, DeliveryCount, EditedFrom:
			return false
		}
		return !Travels(key)
	})
}

// Stored returns the metadata that an outbox stores: the keys that travel to other
// services, see [Travels], except the times that the forwarder sets. It returns
// metadata itself if it removes nothing, and a copy otherwise.
func Stored(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool { return !Travels(key) || isStamp(key) })
}

// Delivered returns the metadata of a message that a broker delivers: the keys that
// travel, and Redelivered and DeliveryCount, which the subscriber sets itself. It
// returns metadata itself if it removes nothing, and a copy otherwise.
func Delivered(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool {
		return !Travels(key) && key != Redelivered && key != DeliveryCount
	})
}

func without(metadata map[string]string, removed func(key string) bool) map[string]string {
	for key := range metadata {
		if removed(key) {
			kept := maps.Clone(metadata)
			maps.DeleteFunc(kept, func(key, _ string) bool { return removed(key) })
			return kept
		}
	}
	return metadata
}
