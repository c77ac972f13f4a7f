package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Run serves until ctx ends or a part of the service does, and then stops
// everything. It may be called once. When it returns all goroutines have ended
// and all connections are closed.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	defer listener.Close() // by the server, unless that never ran
	server := newServer(s.Handler())

	var running sync.WaitGroup
	failed := make(chan error, 3)
	start := func(name string, part func() error) {
		running.Go(func() {
			err := part()
			if err == nil {
				err = errEnded
			}
			failed <- fmt.Errorf("service: %s: %w", name, err)
		})
	}
	// The parts do not see the end of ctx, because they are to be stopped one
	// after the other.
	parts := context.WithoutCancel(ctx)
	consuming, abandon := context.WithCancel(parts)
	defer abandon()

	// Consumers first, so that what is forwarded finds them; clients last, when
	// everything is there to serve them.
	consumed := make(chan struct{})
	start("consumers", func() error {
		defer close(consumed)
		return s.router.Run(consuming)
	})
	err := s.awaitConsumers(ctx, abandon, failed)
	if err == nil && ctx.Err() == nil {
		start("forwarder", func() error { return s.forwarder.Run(parts) })
		err = s.awaitForwarder(ctx, failed)
	}
	if err == nil && ctx.Err() == nil {
		start("http", func() error { return server.Serve(listener) })
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	err = errors.Join(err, s.stop(parts, server, consumed))
	running.Wait()
	return err
}

// errEnded is the error of a part that ended without one before it was stopped.
var errEnded = errors.New("ended by itself")

// awaitConsumers waits until all are subscribed, or until ctx has ended and
// subscribing was abandoned.
func (s *Service) awaitConsumers(ctx context.Context, abandon func(), failed <-chan error) error {
	defer context.AfterFunc(ctx, abandon)()
	select {
	case <-s.router.Running():
		s.health.consumers.Store(true)
		return nil
	case err := <-failed:
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

func (s *Service) awaitForwarder(ctx context.Context, failed <-chan error) error {
	select {
	case <-s.forwarder.Running():
		s.health.forwarder.Store(true)
		return nil
	case <-ctx.Done(): // the database cannot be reached, and we need not wait
		return nil
	case err := <-failed:
		return err
	}
}

// stop ends the parts in the order in which work flows, so that each can hand
// on what it has to one that still works:
//
//  1. HTTP: no new orders; requests under way are answered.
//  2. The consumers: what is in hand is finished, what it produced is in the
//     outbox. What is not in hand stays where it is.
//  3. The forwarder: what it sent is confirmed and deleted. The rest stays in
//     the outbox, for the next start or another instance.
//  4. The publisher and the connections to the broker.
//  5. The database, which all of them needed.
//
// Each of the first three has s.stopTimeout. What is not finished by then is
// undone, and done again after the next start.
func (s *Service) stop(ctx context.Context, server *http.Server, consumed <-chan struct{}) error {
	s.health.stopping.Store(true)
	ctx, cancel := context.WithTimeout(ctx, s.stopTimeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil { // requests are still under way: cut them off
		err = errors.Join(fmt.Errorf("service: stop http: %w", err), server.Close())
	}
	return errors.Join(err,
		stopError("consumers", s.stopConsumers(ctx, consumed)),
		stopError("forwarder", s.forwarder.Close()),
		stopError("connections", s.Close()))
}

// stopConsumers closes the router when it runs. If it could not start, it is
// left: Close would wait for handlers that never began.
func (s *Service) stopConsumers(ctx context.Context, consumed <-chan struct{}) error {
	select {
	case <-s.router.Running():
		return s.router.Close()
	case <-consumed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func stopError(part string, err error) error {
	if err != nil {
		return fmt.Errorf("service: stop %s: %w", part, err)
	}
	return nil
}
