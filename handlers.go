package once

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// handlers are the names of the handlers that a Consumer has added, to be held
// against those that its configuration has.
type handlers struct {
	configured map[string][]string // by field
	parts      []Part              // that are checked when a router starts
	logger     watermill.LoggerAdapter

	mu     sync.Mutex
	names  map[string]bool
	starts map[*message.Router]*begun
}

// begun is the start of a router.
type begun struct {
	*starter

	added  map[string]bool // handlers of the Consumer
	before func() error    // checks what was added while the router ran; or nil
}

func newHandlers(c ConsumerConfig, parts []Part) *handlers {
	h := &handlers{
		configured: map[string][]string{"DurableConsumers": slices.Clone(c.DurableConsumers), "Dedup.Idempotent": slices.Clone(c.Dedup.Idempotent)},
		parts:      parts,
		logger:     c.Logger,
		names:      map[string]bool{},
		starts:     map[*message.Router]*begun{},
	}
	if h.logger == nil {
		h.logger = watermill.NewSlogLogger(nil)
	}
	return h
}

// add notes a handler, and has its router checked when it starts. The plugins of
// a router that runs already were called before: then its subscriber, which is
// returned, has the checks made.
func (h *handlers) add(router *message.Router, name string, sub message.Subscriber) message.Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[name] = true
	b := h.starts[router]
	if b == nil {
		b = &begun{starter: newStarter(h.parts), added: map[string]bool{}}
		b.logger = h.logger
		b.own = func(handler string) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return b.added[handler]
		}
		h.starts[router] = b
		if router.IsRunning() {
			b.before = b.checkOnce(router)
		} else {
			router.AddPlugin(h.look, b.plugin)
		}
	}
	b.added[name] = true
	if b.before == nil {
		return sub
	}
	return &attended{Subscriber: sub, attendance: &b.attendance, before: b.before}
}

// checkOnce returns a function that checks until the checks have passed once.
func (b *begun) checkOnce(router *message.Router) func() error {
	var mu sync.Mutex
	passed := false
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if passed {
			return nil
		}
		err := b.check(router)
		passed = err == nil
		return err
	}
}

// look logs configured names that no handler has: neither one of the Consumer
// nor another of the router, since several Consumers may have the same
// configuration. It is no error of the router: handlers can be added while that runs,
// and a service may run some of them in another process.
func (h *handlers) look(router *message.Router) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range router.Handlers() {
		h.names[name] = true
	}
	for field, names := range h.configured {
		for _, name := range names {
			if !h.names[name] {
				h.logger.Error("A consumer is configured that no handler is added for: is its name spelt as there?",
					fmt.Errorf("ConsumerConfig.%s has %q, handlers are added for %q", field, name, slices.Sorted(maps.Keys(h.names))),
					watermill.LogFields{"consumer": name, "field": field})
			}
		}
	}
	return nil
}
