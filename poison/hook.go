package poison

import (
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/usercode"
)

// Entry is a message that the middleware has put into quarantine.
type Entry struct {
	// ID identifies the entry. Pass it to the methods of package operate/quarantine.
	ID int64

	// Consumer is the name of the consumer that failed. Topic is the topic of its
	// subscription.
	Consumer, Topic string

	// Message is the message as it was received, byte for byte.
	// It is nil if an earlier copy of the message has a row whose stored form is damaged.
	Message *message.Message

	// MessageID is the id of the message. Tenant is the tenant to which the message
	// belongs. If they are too long, they are shortened. Characters that a text column
	// cannot store are replaced. The field Message contains the original values.
	MessageID, Tenant string

	// Reason is one of the Reason constants. Error is the text of the last failure, and
	// ErrorType is the Go type of that error. Failures with the same cause have the same
	// Fingerprint.
	Reason, Error, ErrorType, Fingerprint string

	// Stack is the stack of the handler's panic, at most 8,192 bytes. It is "" if the
	// failure was not a panic.
	Stack string

	// Attempts is the number of calls of the handler. Crashes is the number of processes
	// that died while they handled the message. Replays is the number of replays of the
	// entry.
	Attempts, Crashes, Replays int
}

// hookQueue is the maximum number of entries that wait for Config.OnQuarantine.
const hookQueue = 1000

// hook calls Config.OnQuarantine from a separate goroutine, so that a slow or panicking
// function does not delay acks. The goroutine runs only while entries wait.
type hook struct {
	call   func(Entry)
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	queue   []Entry
	running bool
}

func (h *hook) add(e Entry) {
	if h.call == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == hookQueue {
		h.logger.Error("OnQuarantine is too slow, and is not called for an entry", fmt.Errorf("%d entries wait", hookQueue),
			watermill.LogFields{"entry": e.ID, "consumer": e.Consumer})
		return
	}
	h.queue = append(h.queue, e)
	if !h.running {
		h.running = true
		go h.run()
	}
}

func (h *hook) run() {
	for {
		h.mu.Lock()
		if len(h.queue) == 0 {
			h.running, h.queue = false, nil
			h.mu.Unlock()
			return
		}
		e := h.queue[0]
		h.queue = h.queue[1:]
		h.mu.Unlock()
		h.callWith(e)
	}
}

func (h *hook) callWith(e Entry) {
	err := chain.Run(func() error { h.call(e); return nil })
	if err != nil {
		h.logger.Error("OnQuarantine panicked", err,
			watermill.LogFields{"entry": e.ID, "consumer": e.Consumer, "stack": usercode.Stack(err)})
	}
}
