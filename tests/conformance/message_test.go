package conformance

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// messages that are to be handled. The first one whose handling comes to the
// step ends the process.
var messages = []string{"m1", "m2", "m3"}

// another returns such messages of another round, which have a key and an
// aggregate of their own.
func another(round int) (ids []string) {
	for _, id := range messages {
		ids = append(ids, strconv.Itoa(round)+id)
	}
	return ids
}

// placeOf returns the round and the place of one of these messages. Others have
// a negative place.
func placeOf(id string) (round string, n int) {
	round, name, _ := strings.Cut(id, "m")
	return round, slices.Index(messages, "m"+name)
}

// newMessage returns a message with its place in an order, which counts if the
// consumer keeps one. The versions of m1, m2, m3 are 2, 3, 1. What fails has a
// key of its own.
func newMessage(id string) *message.Message {
	msg := message.NewMessage(id, []byte("body of "+id))
	round, n := placeOf(id)
	msg.Metadata.Set("once_ordering_key", "key"+round)
	if n >= 0 {
		msg.Metadata.Set("once_aggregate_type", "order")
		msg.Metadata.Set("once_aggregate_id", "17"+round)
		msg.Metadata.Set("once_aggregate_version", strconv.Itoa((n+1)%len(messages)+1))
	}
	if id == hopeless {
		for b := range 256 {
			msg.Payload = append(msg.Payload, byte(b), 0)
		}
		msg.Metadata.Set("note", "Ωμέγα \"quoted\"\n")
	}
	return msg
}
