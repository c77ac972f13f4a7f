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
	// ID is what the methods of package operate/quarantine take.
	ID int64

	Consumer, Topic string

	// Message is the message as it was received, byte for byte, or nil if an earlier copy has a row
	// whose stored form is damaged.
	Message *message.Message

	// MessageID and Tenant are shortened if they are too long, without characters that a text
	// column cannot store. The field Message has the original values.
	MessageID, Tenant string

	// Reason is one of the Reason constants, Error the text of the last failure, and ErrorType its
	// Go type. Failures with the same cause have the same Fingerprint.
	Reason, Error, ErrorType, Fingerprint string

	// Stack is the stack of the handler's panic, at most 8,192 bytes, or "".
	Stack string

	// Attempts counts the calls of the handler, Replays the replays of the entry, and Crashes the
	// processes that died while they handled the message.
	Attempts, Crashes, Replays int
}

const hookQueue = 1000

// hook calls Config.OnQuarantine from a goroutine, so that a slow or panicking function does not
// delay acks. It runs only while entries wait.
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
