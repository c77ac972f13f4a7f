package once

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/usercode"
)

// Handle adds a handler of events of type E to router, see [Consumer.AddHandler]. It is for
// services without Watermill's cqrs component; for its processors, see [Consumer.Subscriber].
//
// ConsumerConfig.Marshaler reads the payload. A message with another payload, or with the name of
// another event, goes to the quarantine at once, because a retry would not help. E is a type such
// as OrderPlaced, or a pointer such as *pb.OrderPlaced.
//
// [MessageFromContext] returns the message. To publish events in the transaction, pass ctx to an
// event bus of eventbus.Publisher, or tx to outbox.Publisher. Handle panics if handle is nil, or if
// E is an interface.
func Handle[E any](
	c *Consumer, router *message.Router, consumer, topic string, sub message.Subscriber,
	handle func(ctx context.Context, tx *sql.Tx, event E) error,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	target := reflect.TypeFor[E]()
	if target.Kind() == reflect.Interface {
		panic(fmt.Sprintf("once: the events of %q are %v, an interface: use the type of one event", consumer, target))
	}
	pointer := target.Kind() == reflect.Pointer
	if pointer {
		target = target.Elem()
	}
	h := inTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		read := reflect.New(target)
		if err := c.marshaler.Unmarshal(msg, read.Interface()); err != nil {
			return nil, err
		}
		if !pointer {
			read = read.Elem()
		}
		event, _ := reflect.TypeAssert[E](read)
		return nil, handle(context.WithValue(ctx, messageKey{}, msg), tx, event)
	})
	if _, anyName := c.marshaler.CommandEventMarshaler.(jsonOfAnyName); !anyName {
		h = eventbus.KnownEvents(c.marshaler, reflect.New(target).Interface())(h)
	}
	return c.add(router, consumer, topic, c.subscriber(consumer, sub), c.once.Middleware(c.inOrder(h)))
}

type messageKey struct{}

// MessageFromContext returns the message of an event that a handler of [Handle] got, or false in
// another context. It has the id and the metadata.
func MessageFromContext(ctx context.Context) (*message.Message, bool) {
	msg, ok := ctx.Value(messageKey{}).(*message.Message)
	return msg, ok
}

func marshalerOf(configured eventbus.CommandEventMarshaler) eventbus.Marshaler {
	switch m := configured.(type) {
	case nil:
		return eventbus.Marshaler{CommandEventMarshaler: jsonOfAnyName{}}
	case eventbus.Marshaler:
		return m
	default:
		return eventbus.Marshaler{CommandEventMarshaler: m}
	}
}

// jsonOfAnyName is the default of ConsumerConfig.Marshaler. It only unmarshals.
type jsonOfAnyName struct{ eventbus.CommandEventMarshaler }

func (jsonOfAnyName) Unmarshal(msg *message.Message, v any) error {
	return json.Unmarshal(msg.Payload, v)
}

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

	all             *handlers
	added           map[string]bool                      // names of the handlers
	foreign         map[string]message.HandlerMiddleware // by name, the chains of handlers that other code adds
	beforeSubscribe func() error                         // makes the checks if the router already runs; may be nil
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

// add registers a handler and returns its subscriber.
func (h *handlers) add(router *message.Router, name string, sub message.Subscriber) message.Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on(router).add(name, sub)
}

// addForeign is like add, for a handler that other code adds to router with the returned subscriber.
func (h *handlers) addForeign(
	router *message.Router, name string, sub message.Subscriber, chain message.HandlerMiddleware,
) message.Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.on(router)
	if r.foreign == nil {
		r.foreign = map[string]message.HandlerMiddleware{}
		if router.IsRunning() {
			router.AddMiddleware(r.aroundForeign)
		} else {
			// The plugin runs after all calls of AddMiddleware, so the chain is inside of the others.
			router.AddPlugin(func(router *message.Router) error {
				router.AddMiddleware(r.aroundForeign)
				return nil
			})
		}
	}
	r.foreign[name] = chain
	return &foreignSubscriber{r.add(name, sub), name}
}

// on returns the handlers of router. Call it with mu locked.
func (h *handlers) on(router *message.Router) *routerHandlers {
	if r := h.routers[router]; r != nil {
		return r
	}
	r := &routerHandlers{starter: newStarter(h.parts), all: h, added: map[string]bool{}}
	r.logger = h.logger
	r.addedByConsumer = func(handler string) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return r.added[handler]
	}
	r.checkForeign = r.foreignMistakes
	h.routers[router] = r
	if router.IsRunning() {
		r.beforeSubscribe = r.checkUntilPassed(router)
	} else {
		router.AddPlugin(h.logUnknownNames, r.plugin)
	}
	return r
}

// add returns the subscriber of the handler with this name. A router that is already running calls
// no plugins, so the subscriber makes the checks before it subscribes.
func (r *routerHandlers) add(name string, sub message.Subscriber) message.Subscriber {
	r.all.names[name] = true
	r.added[name] = true
	if r.beforeSubscribe == nil {
		return sub
	}
	return &countedSubscriber{Subscriber: sub, background: &r.background, before: r.beforeSubscribe}
}

// foreignSubscriber is the subscriber of a handler that other code adds.
type foreignSubscriber struct {
	message.Subscriber

	handler string
}

// aroundForeign is a middleware for all handlers of the router. It puts the chain around those that
// other code has added. The router calls it once for each handler, without the handler's name.
func (r *routerHandlers) aroundForeign(h message.HandlerFunc) message.HandlerFunc {
	var first sync.Once
	return func(msg *message.Message) ([]*message.Message, error) {
		first.Do(func() {
			r.all.mu.Lock()
			defer r.all.mu.Unlock()
			if chain := r.foreign[message.HandlerNameFromCtx(msg.Context())]; chain != nil {
				h = chain(h)
			}
		})
		return h(msg)
	}
}

// foreignMistakes returns an error if messages would be handled without the chain, because
// Subscriber was called with another name than that of the handler.
func (r *routerHandlers) foreignMistakes(router *message.Router, handlers []routed) error {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	const remedy = "call Consumer.Subscriber once for each handler, with the name of the handler or of the group"
	missing := maps.Clone(r.foreign)
	for name := range router.Handlers() {
		delete(missing, name)
	}
	var errs []error
	for _, h := range handlers {
		if sub, ok := findSubscriber[*foreignSubscriber](h.Subscriber); ok && sub.handler != h.Name {
			errs = append(errs, fmt.Errorf("handler %q has the subscriber that Consumer.Subscriber returned for handler %q: %s",
				h.Name, sub.handler, remedy))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		errs = append(errs, fmt.Errorf("Consumer.Subscriber was called for handler %q, and the router has no handler with this name: %s",
			name, remedy))
	}
	return errors.Join(errs...)
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
