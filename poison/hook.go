package poison

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// hookQueue is how many entries wait for Config.OnQuarantine at most.
const hookQueue = 1000

// hook calls Config.OnQuarantine from a goroutine of its own, which is there
// while there is something to tell: neither a slow nor a broken one is to hold
// up an ack.
type hook struct {
	call   func(Entry)
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	queue   []Entry
	running bool
}

func (h *hook) tell(e Entry) {
	if h.call == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == hookQueue {
		h.logger.Error("OnQuarantine does not keep up, it is not told of an entry", fmt.Errorf("%d entries wait for it", hookQueue),
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
		h.one(e)
	}
}

func (h *hook) one(e Entry) {
	defer func() {
		if value := recover(); value != nil {
			h.logger.Error("OnQuarantine panicked", fmt.Errorf("panic: %v", value),
				watermill.LogFields{"entry": e.ID, "consumer": e.Consumer, "stack": string(debug.Stack())})
		}
	}()
	h.call(e)
}
