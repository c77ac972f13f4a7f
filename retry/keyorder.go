package retry

import "github.com/watermill-once/once/internal/parked"

// KeyOrder determines whether messages with the same ordering key are handled in order,
// and what happens to the later messages of a key when a message fails. The key is the
// metadata "once_ordering_key", which outbox and forwarder send with the message.
type KeyOrder int

const (
	// Unordered handles messages in any order.
	Unordered KeyOrder = KeyOrder(parked.Unordered)

	// BlockWhileRetried handles the messages of a key one after another, in the order of
	// their arrival. While a failing message is retried, the later messages of its key
	// wait. When the consumer gives up on the failing message, the later messages are
	// handled. So a message that always fails does not block its key forever.
	BlockWhileRetried KeyOrder = KeyOrder(parked.BlockWhileRetried)

	// BlockWhileQuarantined is like BlockWhileRetried, but the later messages also wait
	// while the failed message is in quarantine. The later messages wait until the failed
	// message is replayed and handled, or until it is discarded.
	BlockWhileQuarantined KeyOrder = KeyOrder(parked.BlockWhileQuarantined)

	// BlockWhileRunning is like BlockWhileRetried, but the later messages are handled
	// while the failed message waits for its next round.
	BlockWhileRunning KeyOrder = KeyOrder(parked.BlockWhileRunning)
)
