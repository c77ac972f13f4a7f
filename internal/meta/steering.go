package meta

import "strings"

// Steering says whether a header of that name can steer RabbitMQ, or is read
// as if RabbitMQ had written it. Metadata often comes from outside, and a BCC
// header alone routes a copy to any queue.
//
// In any case of letters these are: CC, BCC, everything that starts with "x-"
// (x-delay, x-death, x-delivery-count, x-stream-..., and with them headers such
// as x-request-id, which need another name), and the message properties that
// the broker acts upon, which bridges map from headers of their names:
// expiration, user-id, user_id.
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
