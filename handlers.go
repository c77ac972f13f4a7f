package once

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/usercode"
)

// handlers are the handlers that a Consumer adds to routers. Each router is checked when it starts,
// and again before a handler that is added later subscribes. The check also logs configured consumer names
// that belong to no handler.
type handlers struct {
	configured map[string][]string // configured consumer names of each field of ConsumerConfig
	parts      []Part
	logger     watermill.LoggerAdapter

	mu      sync.Mutex
	names   map[string]bool // names of all handlers
	routers map[*message.Router]*routerHandlers
}

type routerHandlers struct {
	*starter

	added           map[string]bool // names of the handlers
	beforeSubscribe func() error    // makes the checks if the router already runs; may be nil
}

func newHandlers(c ConsumerConfig, parts []Part) *handlers {
	h := &handlers{
		configured: map[string][]string{
			"DurableConsumers": slices.Clone(c.DurableConsumers),
			"Dedup.Idempotent": slices.Clone(c.Dedup.Idempotent),
		},
		parts:   parts,
		logger:  c.Logger,
		names:   map[string]bool{},
		routers: map[*message.Router]*routerHandlers{},
	}
	if h.logger == nil {
		h.logger = watermill.NewSlogLogger(nil)
	}
	return h
}

// add registers a handler and returns its subscriber. A router that is already running calls no
// plugins, so the subscriber makes the checks before it subscribes.
func (h *handlers) add(router *message.Router, name string, sub message.Subscriber) message.Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[name] = true
	r := h.routers[router]
	if r == nil {
		r = &routerHandlers{starter: newStarter(h.parts), added: map[string]bool{}}
		r.logger = h.logger
		r.addedByConsumer = func(handler string) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return r.added[handler]
		}
		h.routers[router] = r
		if router.IsRunning() {
			r.beforeSubscribe = r.checkUntilPassed(router)
		} else {
			router.AddPlugin(h.logUnknownNames, r.plugin)
		}
	}
	r.added[name] = true
	if r.beforeSubscribe == nil {
		return sub
	}
	return &countedSubscriber{Subscriber: sub, background: &r.background, before: r.beforeSubscribe}
}

// After the checks have passed once, the returned function does nothing.
func (r *routerHandlers) checkUntilPassed(router *message.Router) func() error {
	var mu sync.Mutex
	passed := false
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if passed {
			return nil
		}
		err := r.check(router)
		passed = err == nil
		return err
	}
}

// logUnknownNames logs configured consumer names that no handler of the router has, of any
// Consumer, because several may share a configuration. It is no error: handlers can be added later,
// or run in another process.
func (h *handlers) logUnknownNames(router *message.Router) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range router.Handlers() {
		h.names[name] = true
	}
	for field, names := range h.configured {
		for _, name := range names {
			if !h.names[name] {
				h.logger.Error("A configured consumer has no handler: check the spelling of its name",
					fmt.Errorf("ConsumerConfig.%s has %q, the handlers are %q", field, name, slices.Sorted(maps.Keys(h.names))),
					watermill.LogFields{"consumer": name, "field": field})
			}
		}
	}
	return nil
}

// batchSubscriber tells the subscribers that it wraps how many messages in flight batches need.
type batchSubscriber struct {
	message.Subscriber

	size, inFlight int
}

// Subscribe implements message.Subscriber.
func (s *batchSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.Subscriber.Subscribe(usercode.WithInFlight(ctx, s.inFlight), topic)
}

// checkBatches returns an error if the subscriber allows fewer messages in flight than a full batch
// needs: a handler with small batches is slower than without.
func (s *starter) checkBatches(h routed) error {
	batches, byConsumer := findSubscriber[*batchSubscriber](h.Subscriber)
	if !byConsumer && !slices.ContainsFunc(h.Chain, func(f routedFunc) bool { return f.Batches }) {
		return nil
	}
	limited, ok := findSubscriber[usercode.Limited](h.Subscriber)
	if !ok {
		return nil
	}
	limit, automatic := limited.InFlight()
	size, inFlight, remedy := 0, 0, ""
	if byConsumer {
		size, inFlight, remedy = batches.size, batches.inFlight, "do not set InFlight, or "
	} else {
		for _, part := range s.parts {
			if part.BatchSize > size {
				size, inFlight = part.BatchSize, part.BatchInFlight
			}
		}
	}
	if automatic && byConsumer || limit >= size {
		return nil
	}
	return fmt.Errorf("handler %q collects batches of %d messages, but its subscriber has at most %d in flight: a batch can never be full; "+
		"%sset InFlight to %d, or dedup.Config.Batch.Size to %d or less", h.Name, size, limit, remedy, inFlight, max(1, limit/2))
}
