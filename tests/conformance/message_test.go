package conformance

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// messages are the ids of the messages to handle. A test chooses a point in the code.
// The first message that reaches this point ends the process.
var messages = []string{"m1", "m2", "m3"}

// idsOfRound returns the ids of the messages of the given round. Each round uses a different ordering
// key and aggregate.
func idsOfRound(round int) (ids []string) {
	for _, id := range messages {
		ids = append(ids, strconv.Itoa(round)+id)
	}
	return ids
}

// placeOf returns the round of a message, and its index in messages. For other messages
// the index is negative.
func placeOf(id string) (round string, n int) {
	round, name, _ := strings.Cut(id, "m")
	return round, slices.Index(messages, "m"+name)
}

// newMessage returns a message with an ordering key and a version. These matter only to
// consumers that keep an order. The versions of m1, m2, m3 are 2, 3, 1. Messages whose
// handler fails have a different ordering key.
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
