package meta

import (
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
)

// prefix is the beginning of every key of this module. Other keys must not begin with
// it.
const prefix = "once_"

// Travels reports whether a metadata key is passed on from service to service. Keys of
// other modules are passed on. Keys of this module are passed on if they describe the
// message. The function lists these keys, so a new key is not passed on until you add
// it to the list.
//
// All other keys are for one step only. Topic, DueAt, and Watermill's DelayedUntil and
// DelayedFor are instructions for an outbox, Redelivered and DeliveryCount describe one
// delivery, and EditedFrom describes the edit of one message. A receiver must not trust
// such keys if they come from another service.
func Travels(key string) bool {
	if !strings.HasPrefix(key, prefix) {
		return key != DelayedUntil && key != DelayedFor
	}
	switch key {
	case OrderingKey, TenantID, AggregateType, AggregateID, AggregateVersion, EventType, CausationID, CreatedAt, PublishedAt:
		return true
	}
	return false
}

// Known reports whether this version of the module knows the key. It also returns true
// for the keys of other modules.
func Known(key string) bool {
	switch key {
	case Topic, DueAt, DelayedUntil, DelayedFor, Redelivered, DeliveryCount, Copied, EditedFrom, Times:
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
// Keys that describe the delivery stay, so that the handler can read them. So do headers
// that a broker wrote, and others that would control a broker. If there are such headers,
// Received marks the metadata, see [Copied] and [WithoutDelivery]. If it changes nothing,
// it returns the map metadata itself. Otherwise it returns a copy, because the caller may
// still store the original metadata.
func Received(metadata map[string]string) map[string]string {
	kept := without(metadata, func(key string) bool {
		switch key {
		case Redelivered, DeliveryCount, EditedFrom:
			return false
		}
		return !Travels(key)
	})
	splitTimes(kept, metadata)
	if !isCopied(kept) && hasSteering(kept) {
		kept = maps.Clone(kept)
		kept[Copied] = "true"
	}
	return kept
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
	kept := without(metadata, func(key string) bool {
		return !Travels(key) && key != Redelivered && key != DeliveryCount
	})
	splitTimes(kept, metadata)
	return kept
}

// splitTimes sets the times of the header [Times] in kept, a copy of metadata without
// this header. Only a marshaler of another module leaves this header in the metadata.
func splitTimes(kept, metadata map[string]string) {
	if created, published, ok := SplitTimes(metadata[Times]); ok {
		kept[CreatedAt], kept[PublishedAt] = created, published
	}
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

// WithoutDelivery returns the metadata of a message that is about to be stored in an
// outbox, without the keys that describe how another message was delivered. Handlers copy
// metadata to the messages that they produce. A header that a broker wrote, such as
// x-death, would then be wrong, and the next broker would refuse it.
//
// If metadata was copied from a delivered message, WithoutDelivery removes all steering
// keys (see [Steering]). Otherwise it removes only the keys that nobody but a broker
// writes: a producer that sets another steering key must get an error. If it removes
// nothing, it returns the map metadata itself, and otherwise a copy.
func WithoutDelivery(metadata map[string]string) map[string]string {
	copied := isCopied(metadata)
	return without(metadata, func(key string) bool {
		return Steering(key) && (copied || brokerOnly(key)) || key == timestamp && copied || key == redeliveredByV3
	})
}

func isCopied(metadata map[string]string) bool {
	_, received := metadata[Redelivered]
	_, marked := metadata[Copied]
	return received || marked
}

// timestamp is a header that RabbitMQ's message interceptor adds, unless the message has
// it already.
const timestamp = "timestamp_in_ms"

// redeliveredByV3 marks a redelivered message in watermill-amqp v3. Its subscriber never
// removes the mark, so it would also read a copy of the mark.
const redeliveredByV3 = "_watermill_amqp_redelivered"

func brokerOnly(key string) bool {
	switch key {
	case "x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset", "x-received-from", "x-shovelled",
		"x-shovelled-timestamp", "x-routed-by":
		return true
	}
	for _, prefix := range [...]string{"x-first-death-", "x-last-death-", "x-opt-"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func hasSteering(metadata map[string]string) bool {
	for key := range metadata {
		if Steering(key) {
			return true
		}
	}
	return false
}

// stampLayout is RFC 3339 in UTC with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

// Stamp formats a time for [CreatedAt] and [PublishedAt].
func Stamp(at time.Time) string { return at.UTC().Format(stampLayout) }

// Stamped parses a stamp. It returns false if text is not a stamp of the years 1970 to
// 9999. For a valid stamp, it allocates no memory.
func Stamped(text string) (time.Time, bool) {
	if len(text) != len(stampLayout) || text[len(text)-1] != 'Z' {
		return time.Time{}, false
	}
	// Package time parses RFC3339Nano several times faster than other layouts. A text of
	// this length has exactly three digits after the decimal point of the second.
	at, err := time.Parse(time.RFC3339Nano, text)
	return at, err == nil && at.Unix() >= 0
}

// JoinTimes returns the value of the header [Times]. The result ok is false if one of
// the times is missing or is no valid stamp. Then each of them has a header of its own.
func JoinTimes(metadata map[string]string) (value string, ok bool) {
	created, published := metadata[CreatedAt], metadata[PublishedAt]
	if _, ok := Stamped(created); !ok {
		return "", false
	}
	if _, ok := Stamped(published); !ok {
		return "", false
	}
	return created + "/" + published, true
}

// SplitTimes returns the two times in the value of the header [Times]. The result ok is
// false for any other value.
func SplitTimes(value string) (created, published string, ok bool) {
	if created, published, ok = strings.Cut(value, "/"); !ok {
		return "", "", false
	}
	_, validCreated := Stamped(created)
	_, validPublished := Stamped(published)
	return created, published, validCreated && validPublished
}

// isStamp reports whether the forwarder sets the key. No outbox stores such a key.
func isStamp(key string) bool { return key == CreatedAt || key == PublishedAt }

// Steering reports whether a header can control RabbitMQ, or whether a reader could
// think that RabbitMQ has written it. Metadata often comes from outside, and a BCC
// header alone makes the broker send a copy to any queue.
//
// Steering headers are, in upper or lower case: CC, BCC, every name that starts with
// "x-" (x-delay, x-death, x-delivery-count, x-stream-...), and the message properties
// expiration, user-id and user_id. The broker obeys these properties. A program that
// copies messages to another broker may set them from headers of the same name. A
// header such as x-request-id also counts as a steering header, so give it another
// name.
func Steering(key string) bool {
	if len(key) >= 2 && (key[0] == 'x' || key[0] == 'X') && key[1] == '-' {
		return true
	}
	switch len(key) {
	case len("CC"), len("BCC"), len("user-id"), len("expiration"):
	default:
		return false
	}
	for _, name := range [...]string{"CC", "BCC", "user-id", "user_id", "expiration"} {
		if strings.EqualFold(key, name) {
			return true
		}
	}
	return false
}

// NewID returns a new id of a message, a UUID of version 7. It begins with the time, so
// new ids are next to each other in an index.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
