package once

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// order lists the parts of a handler's chain in the order in which their middlewares
// must be nested. The outermost part comes first.
var order = []string{"poison", "retry", "dedup", "sequence"}

const stock = "github.com/ThreeDotsLabs/watermill/message/router/middleware."

// The doc comment of Plugin says which middlewares partsOf cannot see around h.
func partsOf(h routed) (parts []string) {
	for _, f := range h.Chain {
		if f.Part != "" {
			parts = append(parts, f.Part)
		}
	}
	return parts
}

func hasPart(h routed, part string) bool { return slices.Contains(partsOf(h), part) }

func (s *starter) checkSettings() error {
	if len(s.parts) == 0 {
		return errors.New("Plugin was called without parts: pass the parts that the handlers use, as Plugin(quarantine, retries, inbox)")
	}
	var errs []error
	for _, part := range s.parts[1:] {
		if first := s.parts[0]; part.Schema != first.Schema {
			errs = append(errs, fmt.Errorf("%s.Config.Schema is %+v and %s.Config.Schema is %+v: the parts share their tables, set the same in all",
				first.Name, first.Schema, part.Name, part.Schema))
		}
	}
	for _, inbox := range s.parts {
		for _, retries := range s.parts {
			if inbox.Retention > 0 && inbox.Retention < retries.LongestDelay {
				errs = append(errs, fmt.Errorf("dedup.Config.Retention is %v, and retry retries for up to %v: "+
					"a late duplicate would be handled again; raise Retention, or lower Policy.Delayed or Policy.Max",
					inbox.Retention, retries.LongestDelay))
			}
		}
	}
	return errors.Join(errs...)
}

// checkDatabases checks each database once. dialect.MayPass is true for an unreachable one.
func (s *starter) checkDatabases(ctx context.Context, handlers []routed) error {
	var checked []*sql.DB
	for _, part := range s.parts {
		if part.DB == nil || slices.Contains(checked, part.DB) {
			continue
		}
		checked = append(checked, part.DB)
		if err := s.checkDatabase(ctx, part, handlers); err != nil {
			return err
		}
	}
	return nil
}

func (s *starter) checkDatabase(ctx context.Context, part chain.Part, handlers []routed) error {
	for {
		err := s.checkTables(ctx, part, handlers)
		if !dialect.MayPass(err) {
			if err == nil {
				s.logSmallPool(ctx, part, handlers)
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

func (s *starter) checkTables(ctx context.Context, part chain.Part, handlers []routed) error {
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
	if !outbox || dialect.MayPass(err) {
		return err
	}
	// Only handlers that return messages need the outbox. Those with a publish topic do; for
	// others, which may, a missing right is only logged.
	missing := schema.CheckRights(ctx, part.DB, part.Schema, "producer", "outbox", "outbox_position")
	publishes := slices.ContainsFunc(handlers, func(h routed) bool { return h.PublishTopic != "" && hasPart(h, "dedup") })
	if missing != nil && !publishes {
		s.logger.Info("The outbox cannot be written: deliveries to handlers that return messages would stay unacked",
			watermill.LogFields{"err": missing.Error()})
		missing = nil
	}
	return errors.Join(err, missing)
}

// An unreachable broker is no error, because the transport waits for it.
func (s *starter) checkBrokers(ctx context.Context, handlers []routed) error {
	refusals := make([]error, len(handlers))
	var pings sync.WaitGroup
	for i, h := range handlers {
		if pinger, ok := findSubscriber[usercode.Pinger](h.Subscriber); ok {
			pings.Go(func() {
				if err := pinger.Ping(ctx); err != nil && !dialect.MayPass(err) {
					refusals[i] = err
				}
			})
		}
	}
	pings.Wait()
	var errs []error
	said := make(map[string]bool)
	for i, err := range refusals {
		if err != nil && !said[err.Error()] { // most handlers share a broker
			said[err.Error()] = true
			errs = append(errs, fmt.Errorf("the broker refuses the subscriber of handler %q: %w", handlers[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

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
