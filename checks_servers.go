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

	"github.com/watermill-once/once/internal/routed"
	"github.com/watermill-once/once/internal/start"
	"github.com/watermill-once/once/schema"
)

// checkDatabases checks the database of each part once. If a database cannot be
// reached, start.MayPass returns true for the error.
func (s *starter) checkDatabases(ctx context.Context, handlers []routed.Handler) error {
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

// checkDatabase waits for a database until ctx ends, and checks it.
func (s *starter) checkDatabase(ctx context.Context, part start.Part, handlers []routed.Handler) error {
	for {
		err := s.checkTables(ctx, part, handlers)
		if !start.MayPass(err) {
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

// checkTables checks the tables of a database, and then the rights of the database
// user.
func (s *starter) checkTables(ctx context.Context, part start.Part, handlers []routed.Handler) error {
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
	// Only handlers that return messages need the outbox. A handler with a publish
	// topic returns messages. Other handlers may return messages too, so for them a
	// missing right is only logged.
	missing := schema.CheckRights(ctx, part.DB, part.Schema, "producer", "outbox", "outbox_position")
	publishes := slices.ContainsFunc(handlers, func(h routed.Handler) bool { return h.PublishTopic != "" && hasPart(h, "dedup") })
	if missing != nil && !publishes {
		s.logger.Info("The outbox cannot be written: deliveries to handlers that return messages would stay unacked",
			watermill.LogFields{"err": missing.Error()})
		missing = nil
	}
	return errors.Join(err, missing)
}

// checkBrokers checks that each broker accepts a connection from the subscribers of the
// handlers. If a broker cannot be reached, it returns no error, because the transport
// waits for the broker.
func (s *starter) checkBrokers(ctx context.Context, handlers []routed.Handler) error {
	refusals := make([]string, len(handlers))
	var pings sync.WaitGroup
	for i, h := range handlers {
		if transport, ok := routed.Find[start.Pinger](h.Subscriber); ok {
			pings.Go(func() {
				if err := transport.Ping(ctx); err != nil && !start.MayPass(err) {
					refusals[i] = err.Error()
				}
			})
		}
	}
	pings.Wait()
	var errs []error
	for i, text := range refusals {
		if text != "" && !slices.Contains(refusals[:i], text) { // most handlers share a broker
			errs = append(errs, fmt.Errorf("the broker refuses the subscriber of handler %q: %s", handlers[i].Name, text))
		}
	}
	return errors.Join(errs...)
}
