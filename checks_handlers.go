package once

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// checkHandlers can check only the middlewares that it sees, see Plugin.
func (s *starter) checkHandlers(all []routed) error {
	var errs []error
	for _, h := range all {
		errs = append(errs, s.checkOrder(h), s.checkSubscriber(h), s.checkName(h), s.checkOutbox(h), s.checkBatches(h))
	}
	return errors.Join(append(errs, s.checkSharedNames(all))...)
}

// checkOrder refuses a wrong order, a middleware that was added twice, and one of Watermill that
// would lose or skip messages.
func (s *starter) checkOrder(h routed) error {
	parts := partsOf(h)
	if s.addedByConsumer(h.Name) && len(parts) > 0 {
		return fmt.Errorf("handler %q was added by Consumer.AddHandler, which adds the whole chain: "+
			"do not add the middleware of %s to its router as well", h.Name, strings.Join(parts, ", "))
	}
	const right = "the order is AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)"
	for i := 1; i < len(parts); i++ {
		outer, inner := parts[i-1], parts[i]
		switch {
		case outer == inner:
			return fmt.Errorf("handler %q has the middleware of %s twice: add it once", h.Name, outer)
		case slices.Index(order, outer) > slices.Index(order, inner):
			return fmt.Errorf("handler %q has the middleware of %s inside of %s's: %s", h.Name, inner, outer, right)
		}
	}
	if len(parts) == 0 && !s.addedByConsumer(h.Name) {
		return nil
	}
	for _, f := range h.Chain {
		name, why := "", ""
		switch f.Name {
		case stock + "InstantAck":
			name, why = "InstantAck", "it acks before the message is handled, so a message that fails is lost"
		case stock + "(*Deduplicator).Middleware-fm":
			name, why = "Deduplicator", "it remembers a message before it is handled, so a message that failed is skipped when it is delivered again"
		case stock + "poisonQueue.Middleware-fm":
			if s.addedByConsumer(h.Name) || slices.Contains(parts, "poison") { // without poison, its filter may be useful
				name, why = "PoisonQueue", "it takes messages away from their consumer during an outage of the database, and when the process stops"
			}
		}
		if why != "" {
			return fmt.Errorf("handler %q has Watermill's middleware %s: %s; remove it", h.Name, name, why)
		}
	}
	return nil
}

// Retry's middleware needs its Subscriber, which delivers parked messages again.
func (s *starter) checkSubscriber(h routed) error {
	if !hasPart(h, "retry") {
		return nil
	}
	if _, ok := findSubscriber[usercode.Named](h.Subscriber); ok {
		return nil
	}
	return fmt.Errorf("handler %q has the middleware of retry, but not its subscriber: "+
		"a failed message would be retried at once and never later; add the handler with retries.Subscriber(%q, subscriber)", h.Name, h.Name)
}

// consumerOf returns the consumer name of h, and where it was set, or "" without retry's subscriber
// and dedup's middleware.
func (s *starter) consumerOf(h routed) (name, source string) {
	if named, ok := findSubscriber[usercode.Named](h.Subscriber); ok {
		return named.ConsumerName(), "retries.Subscriber"
	}
	if !hasPart(h, "dedup") {
		return "", ""
	}
	if configured := s.dedupConsumer(); configured != "" {
		return configured, "dedup.Config.Consumer"
	}
	return h.Name, "the router"
}

func (s *starter) dedupConsumer() (name string) {
	inboxes := 0
	for _, part := range s.parts {
		if part.Name == "dedup" {
			name = part.Consumer
			inboxes++
		}
	}
	if inboxes != 1 {
		return ""
	}
	return name
}

func (s *starter) checkName(h routed) error {
	name, from := s.consumerOf(h)
	switch {
	case from == "":
		return nil
	case name == "":
		return fmt.Errorf("handler %q has no consumer name, under which messages are remembered: %s has an empty name; "+
			"choose a name that never changes", h.Name, from)
	case parkedrows.CheckName(name) != nil:
		return fmt.Errorf("handler %q has an invalid consumer name from %s: %w", h.Name, from, parkedrows.CheckName(name))
	}
	if configured := s.dedupConsumer(); configured != "" && configured != name && hasPart(h, "dedup") {
		return fmt.Errorf("handler %q has the consumer name %q from %s, and %q from dedup.Config.Consumer: leave dedup.Config.Consumer empty",
			h.Name, name, from, configured)
	}
	return nil
}

// Handlers with the same consumer name and topic would skip each other's messages.
func (s *starter) checkSharedNames(all []routed) error {
	type name struct{ consumer, topic string }
	first := map[name]string{}
	var errs []error
	for _, h := range all {
		consumer, from := s.consumerOf(h)
		sharer, ok := findSubscriber[usercode.Sharer](h.Subscriber)
		if from == "" || consumer == "" || ok && sharer.SharesConsumer() {
			continue
		}
		key := name{consumer, h.Topic}
		other, taken := first[key]
		if !taken {
			first[key] = h.Name
			continue
		}
		remedy := "give each handler its own consumer name"
		if _, ok := findSubscriber[usercode.Named](h.Subscriber); ok {
			remedy += "; to add one handler more than once, set retry.Config.ShareConsumer"
		}
		errs = append(errs, fmt.Errorf("consumer %q is used by the handlers %q and %q on topic %q, which would skip each other's messages; %s",
			consumer, other, h.Name, h.Topic, remedy))
	}
	return errors.Join(errs...)
}

func (s *starter) checkOutbox(h routed) error {
	inboxes := slices.DeleteFunc(slices.Clone(s.parts), func(p chain.Part) bool { return p.Name != "dedup" })
	if h.PublishTopic == "" || len(inboxes) == 0 || !hasPart(h, "dedup") ||
		slices.ContainsFunc(inboxes, func(p chain.Part) bool { return p.Outbox }) {
		return nil
	}
	return fmt.Errorf("handler %q publishes to topic %q, but dedup has no outbox: messages published after the commit could be lost; "+
		"set dedup.Config.Outbox to outbox.Publisher", h.Name, h.PublishTopic)
}

func (s *starter) logSmallPool(ctx context.Context, part chain.Part, handlers []routed) {
	if part.Schema.Dialect == schema.SQLite { // SQLite has one writer, so more connections do not help
		return
	}
	needed := s.connections(part.DB, handlers)
	most := part.DB.Stats().MaxOpenConnections
	if most > 0 && most < needed {
		s.logger.Error("The connection pool is too small: handlers, claims and leases wait for each other's connections",
			fmt.Errorf("SetMaxOpenConns is %d, but %d handlers with retry.Config.Concurrency need %d, plus one for each message "+
				"of the broker that is handled at the same time: raise SetMaxOpenConns or lower Concurrency", most, s.subscriptions(handlers), needed),
			watermill.LogFields{"max_open": most, "needed": needed})
	}
	const probe = 3 // one connection more than database/sql keeps by default
	if needed >= probe && (most == 0 || most >= probe) && closesIdle(ctx, part.DB, probe) {
		s.logger.Error("The connection pool keeps too few idle connections",
			fmt.Errorf("it keeps fewer than %d idle connections, the default is 2, and the handlers need %d: most transactions would wait "+
				"for a new connection; set SetMaxIdleConns as high as SetMaxOpenConns", probe, needed),
			watermill.LogFields{"max_open": most, "needed": needed})
	}
}

func (s *starter) subscriptions(handlers []routed) (n int) {
	for _, h := range handlers {
		if _, ok := findSubscriber[usercode.Named](h.Subscriber); ok {
			n++
		}
	}
	return n
}

// A message in a handler needs a connection, and a subscription one to claim and renew leases.
func (s *starter) connections(db *sql.DB, handlers []routed) int {
	concurrency := 0
	for _, part := range s.parts {
		if part.DB == db {
			concurrency = cmp.Or(concurrency, part.Concurrency)
		}
	}
	if concurrency == 0 {
		return 0
	}
	return s.subscriptions(handlers) * (concurrency + 1)
}

func closesIdle(ctx context.Context, db *sql.DB, n int) bool {
	before := db.Stats().MaxIdleClosed
	conns := make([]*sql.Conn, 0, n)
	for range n {
		conn, err := db.Conn(ctx)
		if err != nil {
			break
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	return len(conns) == n && db.Stats().MaxIdleClosed > before
}
