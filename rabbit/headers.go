package rabbit

import "github.com/watermill-once/once/internal/meta"

// PublishHeader is the private header by which the Publisher recognises a
// message that the broker returns. It numbers the publishes of one channel and
// means nothing to anybody else; Marshaler drops it. It is a string, because
// watermill-amqp's own marshaler fails on any other type of header.
//
// The message id would not do: one event may go to two topics, and only one of
// the two may be unroutable.
const PublishHeader = "_once_publish"

// SteeringHeader reports whether a header of that name can steer the broker,
// or is read as if the broker had written it. Such keys never pass from a
// message's metadata to its headers: metadata often comes from outside, and a
// BCC header alone routes a copy to any queue.
//
// In any case of letters these are: CC, BCC, everything that starts with "x-"
// (x-delay, x-death, x-delivery-count, x-stream-..., and with them headers
// such as x-request-id, which need another name), and the message properties
// that the broker acts upon, which bridges map from headers of their names:
// expiration, user-id, user_id.
func SteeringHeader(key string) bool { return meta.Steering(key) }
