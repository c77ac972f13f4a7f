package retry

import "github.com/watermill-once/once/internal/parked"

// KeyOrder says whether messages of one ordering key are handled in order, and
// what happens to the successors of a failing message. The key is the metadata
// "once_ordering_key", which outbox and forwarder send with the message.
type KeyOrder int

const (
	// Unordered handles messages in any order.
	Unordered KeyOrder = KeyOrder(parked.Unordered)

	// BlockWhileRetried handles the messages of one key one after another, in the
	// order of their arrival. The successors of a failing message wait while it is
	// retried. When it is given up, they are handled: a message that always fails
	// does not block its key for ever.
	BlockWhileRetried KeyOrder = KeyOrder(parked.BlockWhileRetried)

	// BlockWhileQuarantined is BlockWhileRetried, but the successors also wait
	// while the message is in quarantine: until it is replayed and handled, or
	// discarded.
	BlockWhileQuarantined KeyOrder = KeyOrder(parked.BlockWhileQuarantined)

	// BlockWhileRunning is BlockWhileRetried, but the successors are handled while
	// the message waits for its next round.
	BlockWhileRunning KeyOrder = KeyOrder(parked.BlockWhileRunning)
)
