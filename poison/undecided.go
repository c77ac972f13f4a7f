package poison

import (
	"crypto/sha256"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// maxUndecided is the number of consecutive calls of a handler with an undecided
// outcome after which the message is quarantined, as in package retry. Without retry
// inside, no other code counts these calls. A message that ends its own database
// session each time would then be redelivered forever.
const maxUndecided = 3

// maxCounted is the maximum number of messages in undecidedCalls. It limits the memory.
const maxCounted = 10_000

// undecidedCalls counts, for each message, the consecutive calls in this process with
// an undecided outcome. If a message is delivered to several processes, each process
// counts its own calls. So the handler may be called more than maxUndecided times, but
// not forever.
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

// forget removes the count of a message whose call had another outcome.
func (u *undecidedCalls) forget(consumer string, msg *message.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.n) > 0 {
		delete(u.n, undecidedCallOf(consumer, msg))
	}
}
