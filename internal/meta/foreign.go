package meta

import (
	"maps"
	"strings"
)

// prefix is the beginning of every key of this module. Other keys must not begin with
// it.
const prefix = "once_"

// Travels reports whether a metadata key is passed on from service to service. Keys of
// other modules are passed on. Keys of this module are passed on if they describe the
// message. The function lists these keys, so a new key is not passed on until you add
// it to the list.
//
// All other keys are for one step only. Topic and DueAt are instructions for an outbox,
// Redelivered and DeliveryCount describe one delivery, and EditedFrom describes the
// edit of one message. A receiver must not trust such keys if they come from another
// service.
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

// Known reports whether this version of the module knows the key. It also returns true
// for the keys of other modules.
func Known(key string) bool {
	switch key {
	case Topic, DueAt, Redelivered, DeliveryCount, EditedFrom:
		return true
	}
	return Travels(key)
}

// Received returns the metadata that the handler of a delivered message may see.
// Handlers copy metadata to the messages that they produce, and anyone with access to
// the broker can write any metadata. Therefore Received removes the keys that would
// control the produced messages, and keys of this module that this version does not
// know.
//
// Keys that describe the delivery stay. If Received removes nothing, it returns the map
// metadata itself. Otherwise it returns a copy, because the caller may still store the
// original metadata.
func Received(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool {
		switch key {
		case Redelivered, DeliveryCount, EditedFrom:
			return false
		}
		return !Travels(key)
	})
}

// Stored returns the metadata that an outbox stores. It removes the keys that are not
// passed on to other services, see [Travels], and the times that the forwarder sets. If
// it removes nothing, it returns the map metadata itself, and otherwise a copy.
func Stored(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool { return !Travels(key) || isStamp(key) })
}

// Delivered returns the metadata of a message that a broker delivers. It keeps the keys
// that are passed on, see [Travels]. It also keeps Redelivered and DeliveryCount,
// because the subscriber has set them itself. If it removes nothing, it returns the map
// metadata itself, and otherwise a copy.
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
