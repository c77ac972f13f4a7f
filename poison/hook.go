package poison

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

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
	defer func() {
		if value := recover(); value != nil {
			h.logger.Error("OnQuarantine panicked", fmt.Errorf("panic: %v", value),
				watermill.LogFields{"entry": e.ID, "consumer": e.Consumer, "stack": string(debug.Stack())})
		}
	}()
	h.call(e)
}
