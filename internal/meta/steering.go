package meta

import "strings"

// Steering reports whether a header can steer RabbitMQ, or is read as if RabbitMQ
// had written it. Metadata often comes from outside, and a BCC header alone routes a
// copy to any queue.
//
// Steering headers are, in upper or lower case: CC, BCC, every name that starts with
// "x-" (x-delay, x-death, x-delivery-count, x-stream-...), and message properties that
// the broker acts upon and that bridges set from headers of the same name:
// expiration, user-id, user_id. Headers such as x-request-id match too and need
// another name.
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
