package meta

import (
	"maps"
	"strings"
)

// prefix begins every key of this module. No other key may begin with it.
const prefix = "once_"

// Travels reports whether metadata of that name goes from service to service:
// everything that is not this module's, and those of its keys that describe the
// message itself. It is a list of what is allowed, so a key that is new does not
// travel until it is added here.
//
// All others speak of one step only. Topic and DueAt tell an outbox what to do,
// Redelivered and DeliveryCount what the broker says about one delivery, and
// EditedFrom what an operator has done to one message. From outside they would
// be commands or lies of a stranger.
func Travels(key string) bool {
	if !strings.HasPrefix(key, prefix) {
		return true
	}
	switch key {
	case OrderingKey, TenantID, AggregateType, AggregateID, AggregateVersion, EventType, CausationID,
		QuarantineReason, QuarantineConsumer, QuarantineTopic, QuarantineEntry, QuarantineMessage, QuarantineError:
		return true
	}
	return false
}

// Known reports whether this module gives a meaning to metadata of that name, or
// leaves it to others.
func Known(key string) bool {
	switch key {
	case Topic, DueAt, Redelivered, DeliveryCount, EditedFrom:
		return true
	}
	return Travels(key)
}

// Received returns the metadata of a message that was delivered as its handler
// may see it: without the keys that steer what a handler produces, and without
// keys of this module that this version does not know. Handlers pass metadata
// on, and whoever may publish to the broker writes what they like into it.
//
// What says something about the delivery stays. Without anything to leave out
// it returns metadata itself, else a copy: the original may be stored as it
// came.
func Received(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool {
		switch key {
		case Redelivered, DeliveryCount, EditedFrom:
			return false
		}
		return !Travels(key)
	})
}

// Sent returns metadata as it goes to other services: what [Travels] of it.
// Without anything to leave out it returns metadata itself, else a copy.
func Sent(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool { return !Travels(key) })
}

func without(metadata map[string]string, left func(key string) bool) map[string]string {
	for key := range metadata {
		if left(key) {
			kept := maps.Clone(metadata)
			maps.DeleteFunc(kept, func(key, _ string) bool { return left(key) })
			return kept
		}
	}
	return metadata
}
