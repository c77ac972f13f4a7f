package rabbit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/amqpwire"
	"github.com/watermill-once/once/internal/meta"
)

const (
	// maxHeaders is the maximum size of all headers that Check accepts, in bytes. RabbitMQ
	// closes the connection if the headers do not fit into one frame, by default 128 KiB.
	// Half of this leaves room for headers that are added later, such as a trace.
	maxHeaders = 64 << 10

	// headerFraming is the number of bytes that AMQP adds to each header.
	headerFraming = 6
)

// Check returns an error if RabbitMQ can never accept msg as it is: if metadata would
// control the broker (see [Marshaler]), if a metadata key has more than 255 bytes, or
// if all metadata together has more than 64 KiB. Set outbox.Config.Check to this
// function, so that the producer gets the error in its transaction. Otherwise such a
// message becomes a dead letter.
//
// Check does not use the topic. The exchange and the routing key of a topic depend on
// the configuration of the Publisher, and this function does not know the
// configuration. To limit the size of payloads, set outbox.Config.MaxPayload. The error
// wraps [ErrInvalid] or [ErrTooLarge], and contains the keys, but no values.
func Check(_ string, msg *message.Message) error {
	var long []string
	size := 0
	for key, value := range msg.Metadata {
		size += len(key) + len(value) + headerFraming
		if len(key) > amqpwire.MaxShortString {
			long = append(long, fmt.Sprintf("metadata %s is a key of %d bytes, the limit is %d", shortened(key), len(key), amqpwire.MaxShortString))
		}
	}
	if size > maxHeaders {
		long = append(long, fmt.Sprintf("metadata has %d bytes, the limit is %d", size, maxHeaders))
	}
	if err := checkSteering(msg.Metadata); err != nil {
		return err
	}
	return refusal(ErrTooLarge, long)
}

// Check returns an error if Publish would remove metadata of msg because the metadata
// would control the broker. A forwarder calls Check before Publish. Such a message then
// becomes a dead letter, and its metadata is not lost without notice. If you wrap the
// publisher of a forwarder, give the wrapper this method, too.
func (p *Publisher) Check(_ string, msg *message.Message) error { return checkSteering(msg.Metadata) }

func checkSteering(metadata message.Metadata) error {
	var steering []string
	for key := range metadata {
		if meta.Steering(key) {
			steering = append(steering, fmt.Sprintf("metadata %s would control RabbitMQ: rename it", shortened(key)))
		}
	}
	return refusal(ErrInvalid, steering)
}

// checkError is the error of Check. The reasons in it do not contain values of the
// metadata.
type checkError struct {
	kind    error
	reasons string
}

// refusal returns an error with the reasons, or nil if there are no reasons.
func refusal(kind error, reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	slices.Sort(reasons)
	return &checkError{kind: kind, reasons: strings.Join(reasons, "; ")}
}

func (e *checkError) Error() string { return e.kind.Error() + ": " + e.reasons }

func (e *checkError) Unwrap() error { return e.kind }

// Unacceptable returns true. It has the same meaning as [PublishError].Unacceptable.
func (e *checkError) Unacceptable() bool { return true }

// shortened returns a key in quotes. It shortens long keys, so that error texts stay
// readable.
func shortened(key string) string {
	const limit = 64
	if len(key) > limit {
		return fmt.Sprintf("%q...", key[:limit])
	}
	return fmt.Sprintf("%q", key)
}
