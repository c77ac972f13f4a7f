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
	logger     watermill.LoggerAdapter

	mu      sync.Mutex
	names   map[string]bool
	routers []*message.Router // that look when they start
}

func newHandlers(c ConsumerConfig) *handlers {
	h := &handlers{
		configured: map[string][]string{"Durable": slices.Clone(c.Durable), "Dedup.Idempotent": slices.Clone(c.Dedup.Idempotent)},
		logger:     c.Logger,
		names:      map[string]bool{},
	}
	if h.logger == nil {
		h.logger = watermill.NewSlogLogger(nil)
	}
	return h
}

func (h *handlers) add(router *message.Router, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[name] = true
	if !slices.Contains(h.routers, router) && !router.IsRunning() {
		h.routers = append(h.routers, router)
		router.AddPlugin(h.look)
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
