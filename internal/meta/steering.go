package meta

import "strings"

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
