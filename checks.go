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

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
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
