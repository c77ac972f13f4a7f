package poison

import (
	"crypto/sha256"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// maxUndecided is how many consecutive calls of a handler may have an undecided outcome
// before the message is quarantined, as in package retry. Without retry inside, nobody
// else counts them, and a message that ends its own database session each time would be
// redelivered without end.
const maxUndecided = 3

// maxCounted limits the memory of undecidedCalls.
const maxCounted = 10_000

// undecidedCalls counts the consecutive calls with an undecided outcome of each message,
// in this process. A message that is delivered to several processes may be called more
// often, but not without end.
type undecidedCalls struct {
	mu sync.Mutex
	n  map[undecidedCall]int
}

type undecidedCall struct{ consumer, message string }

func undecidedCallOf(consumer string, msg *message.Message) undecidedCall {
	if msg.UUID != "" {
		return undecidedCall{consumer, msg.UUID}
	}
	digest := sha256.Sum256(msg.Payload)
	return undecidedCall{consumer, string(digest[:])}
}

// add counts a call and returns true if the message must be quarantined.
func (u *undecidedCalls) add(consumer string, msg *message.Message) (tooMany bool) {
	call := undecidedCallOf(consumer, msg)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == nil || len(u.n) >= maxCounted {
		u.n = map[undecidedCall]int{}
	}
	u.n[call]++
	return u.n[call] >= maxUndecided
}

// forget ends the count of a message that has another outcome.
func (u *undecidedCalls) forget(consumer string, msg *message.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.n) > 0 {
		delete(u.n, undecidedCallOf(consumer, msg))
	}
}
