package once

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/routed"
	"github.com/watermill-once/once/internal/start"
	"github.com/watermill-once/once/schema"
)

// Part is what [Plugin] takes: a *dedup.Inbox, *retry.Retries, *poison.Quarantine,
// *durable.Storage or *sequence.Resequencer.
type Part interface {
	Part() start.Part
}

// Plugin checks the single middlewares when their router starts, before any
// message is delivered, and removes what the inbox need not remember for as long
// as the router runs. [Consumer] adds it by itself. Give it every part that the
// handlers of the router use, once for each router:
//
//	router.AddPlugin(once.Plugin(quarantine, retries, inbox))
//	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)
//
// Router.Run returns all mistakes at once: tables that are missing or of another
// version, rights that the database user lacks, a wrong order of middleware, a
// consumer's name that is not valid or used twice, retry without its Subscriber,
// a handler that publishes without an outbox, a retention that is shorter than
// the retries, and a database or broker that refuses the password. A pool that
// is too small is logged.
//
// A database or a broker that cannot be reached is no mistake. The plugin waits
// for it for 5 seconds; then the router starts. The database is checked when it
// comes, and mistakes found then are logged as errors.
//
// Only middleware that was added as a method value (inbox.Middleware) can be
// seen, and a handler's own chain up to its outermost middleware. What cannot be
// seen is not reported.
func Plugin(parts ...Part) message.RouterPlugin {
	return func(router *message.Router) error { return newStarter(parts).plugin(router) }
}

// starter is one start of a router.
type starter struct {
	parts  []start.Part
	logger watermill.LoggerAdapter
	own    func(handler string) bool // says which handlers a Consumer has added

	attendance attendance
	unchecked  func(ctx context.Context) error // what is left to check, or nil
}

func newStarter(parts []Part) *starter {
	s := &starter{logger: watermill.NopLogger{}, own: func(string) bool { return false }}
	s.attendance.work = s.attend
	for i, part := range parts {
		if part == nil {
			continue
		}
		described := part.Part()
		s.parts = append(s.parts, described)
		if i == 0 && described.Logger != nil {
			s.logger = described.Logger
		}
	}
	return s
}

// plugin implements message.RouterPlugin.
func (s *starter) plugin(router *message.Router) error {
	router.AddSubscriberDecorators(s.attendance.decorate)
	return s.check(router)
}

func (s *starter) check(router *message.Router) error {
	handlers, err := routed.Handlers(router)
	if err != nil {
		s.logger.Error("The order of the middleware and the names of the consumers are not checked", err, nil)
	}
	found := []error{s.settings(), s.handlers(handlers)}

	ctx, cancel := context.WithTimeout(context.Background(), start.Patience)
	defer cancel()
	var database, broker error
	var both sync.WaitGroup
	both.Go(func() { database = s.databases(ctx, handlers) })
	both.Go(func() { broker = s.brokers(ctx, handlers) })
	both.Wait()
	if start.MayPass(database) {
		s.logger.Error("The database cannot be reached: the router starts, and the tables are checked later", database, nil)
		s.unchecked = func(ctx context.Context) error { return s.databases(ctx, handlers) }
		database = nil
	}
	if err := errors.Join(append(found, database, broker)...); err != nil {
		return fields.Refused("once", err)
	}
	return nil
}

// attend works until ctx ends: while the router has subscriptions.
func (s *starter) attend(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, part := range s.parts {
		if part.Run != nil {
			running.Go(func() {
				if err := part.Run(ctx); err != nil {
					s.logger.Error("What is too old is not removed any more", err, nil)
				}
			})
		}
	}
	if s.unchecked != nil {
		running.Go(func() { s.checkLater(ctx) })
	}
}

// checkLater checks the database until it can be reached and is as it should be.
func (s *starter) checkLater(ctx context.Context) {
	var said string
	for {
		err := s.unchecked(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			s.logger.Info("The database is checked: it is as it should be", nil)
			return
		case !start.MayPass(err) && err.Error() != said:
			said = err.Error()
			s.logger.Error("The database is not as it should be", fields.Refused("once", err), nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(start.Patience):
		}
	}
}

// databases checks the database of each pool that a part has. Its error is
// start.MayPass if one cannot be reached.
func (s *starter) databases(ctx context.Context, handlers []routed.Handler) error {
	var checked []*sql.DB
	for _, part := range s.parts {
		if part.DB == nil || slices.Contains(checked, part.DB) {
			continue
		}
		checked = append(checked, part.DB)
		if err := s.database(ctx, part, handlers); err != nil {
			return err
		}
	}
	return nil
}

// database waits for a database until ctx ends, and checks it.
func (s *starter) database(ctx context.Context, part start.Part, handlers []routed.Handler) error {
	for {
		err := s.tables(ctx, part, handlers)
		if !start.MayPass(err) {
			if err == nil {
				s.advise(ctx, part, handlers)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tables checks tables and rights. Without the right tables it says nothing of
// rights.
func (s *starter) tables(ctx context.Context, part start.Part, handlers []routed.Handler) error {
	if err := schema.Check(ctx, part.DB, part.Schema); err != nil {
		return err
	}
	var tables []string
	outbox := false
	for _, other := range s.parts {
		if other.DB == part.DB || other.DB == nil {
			tables = append(tables, other.Tables...)
			outbox = outbox || other.Outbox
		}
	}
	err := schema.CheckRights(ctx, part.DB, part.Schema, "consumer", tables...)
	if !outbox || start.MayPass(err) {
		return err
	}
	// Only a handler that returns messages needs the outbox, and most do not say
	// whether they do.
	missing := schema.CheckRights(ctx, part.DB, part.Schema, "producer", "outbox", "outbox_position")
	publishes := slices.ContainsFunc(handlers, func(h routed.Handler) bool { return h.PublishTopic != "" && has(h, "dedup") })
	if missing != nil && !publishes {
		s.logger.Info("Messages of handlers that return messages would be held: the outbox cannot be written",
			watermill.LogFields{"err": missing.Error()})
		missing = nil
	}
	return errors.Join(err, missing)
}

// brokers asks each transport whether its broker lets it in. The broker of one
// that cannot be reached is waited for by the transport.
func (s *starter) brokers(ctx context.Context, handlers []routed.Handler) error {
	said := make([]string, len(handlers))
	var asking sync.WaitGroup
	for i, h := range handlers {
		if transport, ok := routed.Find[start.Pinger](h.Subscriber); ok {
			asking.Go(func() {
				if err := transport.Ping(ctx); err != nil && !start.MayPass(err) {
					said[i] = err.Error()
				}
			})
		}
	}
	asking.Wait()
	var errs []error
	for i, text := range said {
		if text != "" && !slices.Contains(said[:i], text) { // most handlers share a broker
			errs = append(errs, fmt.Errorf("the broker refuses the subscriber of handler %q: %s", handlers[i].Name, text))
		}
	}
	return errors.Join(errs...)
}
