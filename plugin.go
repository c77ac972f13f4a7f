package once

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
)

// Part is an argument of [Plugin]: a *dedup.Inbox, *retry.Retries,
// *quarantine.Entries, *durable.Storage or *sequence.Resequencer.
type Part interface {
	Part() chain.Part
}

// Plugin returns a router plugin for services that use the middlewares without a [Consumer], which
// adds it itself. When the router starts, before any message is delivered, it checks the
// configuration. While the router runs, it removes expired rows of the inbox (dedup.Inbox.Run).
// Call Plugin once for each router, with every middleware that its handlers use:
//
//	router.AddPlugin(once.Plugin(quarantine, retries, inbox))
//	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)
//
// Router.Run then returns all mistakes in one error. The mistakes are
//
//   - tables that are missing, or whose version does not fit this code
//   - rights that the database user lacks
//   - a wrong order of middlewares
//   - a consumer name that is invalid or used twice
//   - package retry's Middleware without its Subscriber
//   - a handler that publishes without an outbox
//   - an inbox retention that is shorter than the retries
//   - a database or broker that rejects the password
//
// If a connection pool is too small, the plugin only logs an error, with the logger of the first
// argument.
//
// An unreachable database or broker is not a mistake. The router starts after 5 seconds without it,
// and the plugin logs the mistakes that it finds when the database can be reached.
//
// The plugin recognizes a middleware only if it was added as a method value (inbox.Middleware).
// Among those that were added to a single handler, it sees only the outermost one.
func Plugin(parts ...Part) message.RouterPlugin {
	return func(router *message.Router) error { return newStarter(parts).plugin(router) }
}

// starter checks a router when it starts, and then runs the background work of the parts.
type starter struct {
	parts           []chain.Part
	logger          watermill.LoggerAdapter
	addedByConsumer func(handler string) bool
	checkForeign    func(router *message.Router, handlers []routed) error // of Consumer.Subscriber

	background background
	laterCheck func(ctx context.Context) error // checks a database that was unreachable at the start; may be nil
}

func newStarter(parts []Part) *starter {
	s := &starter{
		addedByConsumer: func(string) bool { return false },
		checkForeign:    func(*message.Router, []routed) error { return nil },
	}
	s.background.work = s.runBackground
	for _, part := range parts {
		if part == nil {
			continue
		}
		described := part.Part()
		s.parts = append(s.parts, described)
		if s.logger == nil {
			s.logger = described.Logger
		}
	}
	if s.logger == nil {
		s.logger = watermill.NewSlogLogger(nil)
	}
	return s
}

func (s *starter) plugin(router *message.Router) error {
	router.AddSubscriberDecorators(s.background.decorate)
	return s.check(router)
}

func (s *starter) check(router *message.Router) error {
	handlers, err := routedHandlers(router)
	if err != nil {
		s.logger.Error("The order of the middlewares and the consumer names cannot be checked", err, nil)
	}
	found := []error{s.checkSettings(), s.checkHandlers(handlers), s.checkForeign(router, handlers)}

	ctx, cancel := context.WithTimeout(context.Background(), usercode.Patience)
	defer cancel()
	var database, broker error
	var both sync.WaitGroup
	both.Go(func() { database = s.checkDatabases(ctx, handlers) })
	both.Go(func() { broker = s.checkBrokers(ctx, handlers) })
	both.Wait()
	if dialect.MayPass(database) {
		s.logger.Error("The database cannot be reached: the router starts, and the tables are checked later", database, nil)
		s.laterCheck = func(ctx context.Context) error { return s.checkDatabases(ctx, handlers) }
		database = nil
	}
	if err := errors.Join(append(found, database, broker)...); err != nil {
		return usercode.Refused("once", err)
	}
	return nil
}

func (s *starter) runBackground(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, part := range s.parts {
		if part.Run != nil {
			running.Go(func() {
				if err := part.Run(ctx); err != nil {
					s.logger.Error("Removal of expired rows has stopped", err, nil)
				}
			})
		}
	}
	if s.laterCheck != nil {
		running.Go(func() { s.checkLater(ctx) })
	}
}

// checkLater checks the database until it can be reached and passes.
func (s *starter) checkLater(ctx context.Context) {
	var logged string
	for {
		err := s.laterCheck(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			s.logger.Info("The database can be reached and has passed the check", nil)
			return
		case !dialect.MayPass(err) && err.Error() != logged:
			logged = err.Error()
			s.logger.Error("The database has not passed the check", usercode.Refused("once", err), nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(usercode.Patience):
		}
	}
}

type background struct {
	work func(ctx context.Context)

	mu            sync.Mutex
	subscriptions int
	stop          context.CancelFunc
}

func (b *background) decorate(sub message.Subscriber) (message.Subscriber, error) {
	return &countedSubscriber{Subscriber: sub, background: b}, nil
}

func (b *background) subscribed(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscriptions++
	if b.subscriptions == 1 {
		var workCtx context.Context
		workCtx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
		go b.work(workCtx)
	}
	context.AfterFunc(ctx, b.unsubscribed)
}

func (b *background) unsubscribed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscriptions--
	if b.subscriptions == 0 {
		b.stop()
	}
}

// countedSubscriber counts the subscriptions of a handler, which end with the context of Subscribe.
type countedSubscriber struct {
	message.Subscriber

	background *background
	before     func() error // runs before Subscribe; may be nil
}

func (s *countedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return nil, err
		}
	}
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err == nil {
		s.background.subscribed(ctx)
	}
	return in, err
}
