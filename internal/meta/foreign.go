package meta

import (
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Keys of other modules must not begin with prefix.
const prefix = "once_"

// Travels reports whether a metadata key is passed on from service to service: all keys of other
// modules, and those of this module that describe the message. The function lists these, so a new
// one is not passed on until you add it.
//
// All others are for one step only: instructions for an outbox (Topic, DueAt, Watermill's
// DelayedUntil and DelayedFor), one delivery (Redelivered, DeliveryCount), or one edit
// (EditedFrom). A receiver must not trust them if they come from another service.
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

// Known reports whether this version of the module knows the key, or it belongs to another module.
func Known(key string) bool {
	switch key {
	case Topic, DueAt, DelayedUntil, DelayedFor, Redelivered, DeliveryCount, Copied, EditedFrom, Times:
		return true
	}
	return Travels(key)
}

// Received returns the metadata that the handler of a delivered message may see. Handlers copy
// metadata to the messages that they produce, and anyone with access to the broker can write any
// metadata. Therefore Received removes the keys that would control the produced messages, and those
// of this module that this version does not know.
//
// Keys that describe the delivery stay for the handler, as do headers that a broker wrote, or that
// would control one, for which Received marks the metadata, see [Copied] and [WithoutDelivery]. It
// returns a copy if it changes anything, because the caller may still store the original.
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

// Stored returns the metadata that an outbox stores, without the keys that are not passed on, see
// [Travels], and the times that the forwarder sets: metadata itself, or a copy.
func Stored(metadata map[string]string) map[string]string {
	return without(metadata, func(key string) bool { return !Travels(key) || isStamp(key) })
}

// Delivered returns the metadata of a message that a broker delivers: the keys that are passed on,
// see [Travels], and Redelivered and DeliveryCount, which the subscriber itself has set, as
// metadata itself, or a copy.
func Delivered(metadata map[string]string) map[string]string {
	kept := without(metadata, func(key string) bool {
		return !Travels(key) && key != Redelivered && key != DeliveryCount
	})
	splitTimes(kept, metadata)
	return kept
}

// Only a marshaler of another module leaves the header [Times] in the metadata.
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

// WithoutDelivery returns the metadata of a message to store in an outbox, without the keys that
// describe how another message was delivered, which handlers copy. A header that a broker wrote,
// such as x-death, would be wrong, and the next broker would refuse it.
//
// From metadata that was copied from a delivered message, all steering keys (see [Steering]) are
// removed, and otherwise those that nobody but a broker writes: a producer that sets another one
// must get an error. The result is metadata itself, or a copy.
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

// timestamp is what RabbitMQ's message interceptor adds.
const timestamp = "timestamp_in_ms"

// redeliveredByV3 marks a redelivered message in watermill-amqp v3, whose subscriber never removes
// it, and would read a copy, too.
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

const stampLayout = "2006-01-02T15:04:05.000Z"

// Stamp formats a time for [CreatedAt] and [PublishedAt].
func Stamp(at time.Time) string { return at.UTC().Format(stampLayout) }

// Stamped parses a stamp of the years 1970 to 9999. For a valid one, it allocates no memory.
func Stamped(text string) (time.Time, bool) {
	if len(text) != len(stampLayout) || text[len(text)-1] != 'Z' {
		return time.Time{}, false
	}
	// Package time parses RFC3339Nano several times faster than other layouts. This length means
	// exactly three digits of a fraction.
	at, err := time.Parse(time.RFC3339Nano, text)
	return at, err == nil && at.Unix() >= 0
}

// JoinTimes returns the value of the header [Times], or false if one of the times is missing or no
// valid stamp. Then each has a header of its own.
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

// SplitTimes returns the two times in a header [Times], or false for any other value.
func SplitTimes(value string) (created, published string, ok bool) {
	if created, published, ok = strings.Cut(value, "/"); !ok {
		return "", "", false
	}
	_, validCreated := Stamped(created)
	_, validPublished := Stamped(published)
	return created, published, validCreated && validPublished
}

func isStamp(key string) bool { return key == CreatedAt || key == PublishedAt }

// Steering reports whether a header can control RabbitMQ, or a reader could think that RabbitMQ has
// written it. Metadata often comes from outside, and a BCC header alone makes the broker send a
// copy to any queue.
//
// In any case: CC, BCC, every name that starts with "x-" (x-delay, x-death, x-stream-..., and
// x-request-id, which needs another name), and the message properties expiration, user-id and
// user_id, which the broker obeys, and programs that copy messages may set from headers of the same
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

// NewID returns a UUID of version 7 for a message, which begins with the time, so that new ids are
// next to each other in an index.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
