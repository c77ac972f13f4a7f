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

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/routed"
	"github.com/watermill-once/once/internal/start"
	"github.com/watermill-once/once/schema"
)

// order is that of the chain, from the outside in.
var order = []string{"poison", "retry", "dedup", "sequence"}

const (
	module = "github.com/watermill-once/once/"
	stock  = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
)

// methods are our middlewares as they are given to AddMiddleware.
var methods = map[string]string{
	module + "poison.(*Quarantine).Middleware-fm":    "poison",
	module + "retry.(*Retries).Middleware-fm":        "retry",
	module + "dedup.(*Inbox).Middleware-fm":          "dedup",
	module + "dedup.(*Inbox).BatchMiddleware-fm":     "dedup",
	module + "sequence.(*Resequencer).Middleware-fm": "sequence",
}

// closures are what our middlewares return: file, type, part. The compiler may
// name a closure after the function that it was inlined into.
var closures = [][3]string{
	{"/poison/middleware.go", "(*Quarantine).Middleware.", "poison"},
	{"/retry/middleware.go", "(*Retries).Middleware.", "retry"},
	{"/dedup/inbox.go", "(*Inbox).middleware.", "dedup"},
	{"/sequence/resequencer.go", "(*Resequencer).Middleware.", "sequence"},
}

// partOf returns which of our middlewares f is, or "".
func partOf(f routed.Func) string {
	if part, ok := methods[f.Name]; ok {
		return part
	}
	for _, c := range closures {
		if strings.HasSuffix(f.File, c[0]) && strings.Contains(f.Name, c[1]) {
			return c[2]
		}
	}
	return ""
}

// chain returns our middlewares around h that can be seen, from the outside in.
func chain(h routed.Handler) (parts []string) {
	for _, f := range h.Chain {
		if part := partOf(f); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func has(h routed.Handler, part string) bool { return slices.Contains(chain(h), part) }

// settings compares what the parts were configured with.
func (s *starter) settings() error {
	if len(s.parts) == 0 {
		return errors.New("Plugin was given no parts: give it what the handlers use, as Plugin(quarantine, retries, inbox)")
	}
	var errs []error
	for _, part := range s.parts[1:] {
		if first := s.parts[0]; part.Schema != first.Schema {
			errs = append(errs, fmt.Errorf("%s.Config.Schema is %+v and %s.Config.Schema %+v: the parts share their tables, give all the same",
				first.Name, first.Schema, part.Name, part.Schema))
		}
	}
	for _, inbox := range s.parts {
		for _, retries := range s.parts {
			if inbox.Retention > 0 && inbox.Retention < retries.LongestDelay {
				errs = append(errs, fmt.Errorf("dedup.Config.Retention is %v, and retry tries for up to %v: "+
					"a late copy would be handled again; raise Retention, or lower Policy.Delayed or Policy.Max", inbox.Retention, retries.LongestDelay))
			}
		}
	}
	return errors.Join(errs...)
}

// handlers checks what can be seen of the handlers of a router.
func (s *starter) handlers(all []routed.Handler) error {
	var errs []error
	for _, h := range all {
		errs = append(errs, s.chainOf(h), s.subscriberOf(h), s.nameOf(h), s.outboxOf(h))
	}
	return errors.Join(append(errs, s.namesakes(all))...)
}

// chainOf checks the order of the middleware.
func (s *starter) chainOf(h routed.Handler) error {
	parts := chain(h)
	if s.own(h.Name) && len(parts) > 0 {
		return fmt.Errorf("handler %q was added by Consumer.AddHandler, which has the whole chain: "+
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
	for _, f := range h.Chain {
		why := ""
		switch f.Name {
		case stock + "InstantAck":
			why = "it acks before the message is handled, and a message that fails is lost"
		case stock + "(*Deduplicator).Middleware-fm":
			why = "it remembers a message before it is handled, and one that failed is skipped when it comes again"
		}
		if why != "" && (len(parts) > 0 || s.own(h.Name)) {
			return fmt.Errorf("handler %q has Watermill's middleware %s: %s; leave it out",
				h.Name, strings.Trim(strings.TrimSuffix(strings.TrimPrefix(f.Name, stock), ".Middleware-fm"), "(*)"), why)
		}
	}
	return nil
}

// subscriberOf checks that what retry parks comes back.
func (s *starter) subscriberOf(h routed.Handler) error {
	if !has(h, "retry") {
		return nil
	}
	if _, ok := routed.Find[start.Named](h.Subscriber); ok {
		return nil
	}
	return fmt.Errorf("handler %q has the middleware of retry, and its subscriber is not retry's: "+
		"a failed message would be tried at once and never later; add the handler with retries.Subscriber(%q, subscriber)", h.Name, h.Name)
}

// consumerOf returns the name that messages of h are remembered under, and
// where it comes from. It is no consumer's if the second result is "".
func (s *starter) consumerOf(h routed.Handler) (name, from string) {
	if named, ok := routed.Find[start.Named](h.Subscriber); ok {
		return named.ConsumerName(), "retries.Subscriber"
	}
	if !has(h, "dedup") {
		return "", ""
	}
	if own := s.configured(); own != "" {
		return own, "dedup.Config.Consumer"
	}
	return h.Name, "the router"
}

// configured returns dedup.Config.Consumer, if there is one inbox.
func (s *starter) configured() (name string) {
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

func (s *starter) nameOf(h routed.Handler) error {
	name, from := s.consumerOf(h)
	switch {
	case from == "":
		return nil
	case name == "":
		return fmt.Errorf("handler %q has no consumer name: %s has an empty one, and messages are remembered under it; "+
			"choose a name that stays the same for good", h.Name, from)
	case parked.CheckName(name) != nil:
		return fmt.Errorf("handler %q cannot have the consumer name that %s gives: %w", h.Name, from, parked.CheckName(name))
	}
	if own := s.configured(); own != "" && own != name && has(h, "dedup") {
		return fmt.Errorf("handler %q has the consumer name %q from %s, and %q from dedup.Config.Consumer: leave dedup.Config.Consumer empty",
			h.Name, name, from, own)
	}
	return nil
}

// namesakes finds handlers that would skip what another one has done.
func (s *starter) namesakes(all []routed.Handler) error {
	type name struct{ consumer, topic string }
	first := map[name]string{}
	var errs []error
	for _, h := range all {
		consumer, from := s.consumerOf(h)
		sharer, ok := routed.Find[start.Sharer](h.Subscriber)
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
		if _, ok := routed.Find[start.Named](h.Subscriber); ok {
			remedy += "; to add one handler more than once, set retry.Config.ShareConsumer"
		}
		errs = append(errs, fmt.Errorf("consumer %q is used by the handlers %q and %q on topic %q: each would skip what the other has done; %s",
			consumer, other, h.Name, h.Topic, remedy))
	}
	return errors.Join(errs...)
}

// outboxOf checks that there is an outbox for what a handler returns.
func (s *starter) outboxOf(h routed.Handler) error {
	inboxes := slices.DeleteFunc(slices.Clone(s.parts), func(p start.Part) bool { return p.Name != "dedup" })
	if h.PublishTopic == "" || len(inboxes) == 0 || !has(h, "dedup") ||
		slices.ContainsFunc(inboxes, func(p start.Part) bool { return p.Outbox }) {
		return nil
	}
	return fmt.Errorf("handler %q publishes to topic %q, and dedup has no outbox: messages published after the commit could be lost; "+
		"set dedup.Config.Outbox to outbox.Publisher", h.Name, h.PublishTopic)
}

// advise logs what makes a consumer slow, or less safe than it could be.
func (s *starter) advise(ctx context.Context, part start.Part, handlers []routed.Handler) {
	// The check of the server's own settings belongs here too.
	if part.Schema.Dialect == schema.SQLite { // it has one writer
		return
	}
	needed := s.connections(part.DB, handlers)
	most := part.DB.Stats().MaxOpenConnections
	if most > 0 && most < needed {
		s.logger.Error("The connection pool is too small: handlers, claims and leases wait for each other's connections",
			fmt.Errorf("SetMaxOpenConns is %d, and %d handlers with retry.Config.Concurrency need %d, and one more for each message "+
				"of the broker that is handled at the same time: raise SetMaxOpenConns or lower Concurrency", most, s.subscriptions(handlers), needed),
			watermill.LogFields{"max_open": most, "needed": needed})
	}
	const probe = 3 // one more than database/sql keeps by default
	if needed >= probe && (most == 0 || most >= probe) && closes(ctx, part.DB, probe) {
		s.logger.Error("The connection pool closes connections that are needed again at once",
			fmt.Errorf("it keeps fewer than %d idle connections, 2 by default, and the handlers need %d: most transactions would wait "+
				"for a new connection; set SetMaxIdleConns as high as SetMaxOpenConns", probe, needed),
			watermill.LogFields{"max_open": most, "needed": needed})
	}
}

// subscriptions is how many handlers fetch parked messages.
func (s *starter) subscriptions(handlers []routed.Handler) (n int) {
	for _, h := range handlers {
		if _, ok := routed.Find[start.Named](h.Subscriber); ok {
			n++
		}
	}
	return n
}

// connections is how many connections the parked messages of all handlers need
// at least: one for each that is handled, and one of each subscription to claim
// and renew.
func (s *starter) connections(db *sql.DB, handlers []routed.Handler) int {
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

// closes reports whether the pool closes some of n connections when they become
// free at once.
func closes(ctx context.Context, db *sql.DB, n int) bool {
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
