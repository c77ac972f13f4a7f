package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Run serves until ctx ends or a part of the service fails. Then it stops all
// parts. It may be called once. When it returns, all goroutines have ended and
// all connections are closed.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	defer listener.Close() // the server closes it as well, if it ran
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
	// The parts do not see the end of ctx, because stop stops them one after the
	// other.
	parts := context.WithoutCancel(ctx)
	consuming, abandon := context.WithCancel(parts)
	defer abandon()

	// Start the consumers first, so that they run when the first event is sent.
	// Start HTTP last, when every other part runs.
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

// errEnded is the error of a part that ended before it was stopped, and returned
// no error.
var errEnded = errors.New("ended by itself")

// awaitConsumers waits until all consumers have subscribed. If ctx ends first, it
// calls abandon and waits until subscribing has ended.
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

// awaitForwarder waits until the forwarder runs, or until ctx ends.
func (s *Service) awaitForwarder(ctx context.Context, failed <-chan error) error {
	select {
	case <-s.forwarder.Running():
		s.health.forwarder.Store(true)
		return nil
	case <-ctx.Done(): // the forwarder may be waiting for the database
		return nil
	case err := <-failed:
		return err
	}
}

// stop stops the parts in this order, so that each part can still use the later
// ones:
//
//  1. HTTP accepts no new orders, and answers the requests that have begun.
//  2. The consumers finish the messages that they are handling. The events of
//     these messages are in the outbox. Other messages stay in their queues.
//  3. The forwarder waits for the confirms of the events that it has sent. The
//     other events stay in the outbox, for the next start or another instance.
//  4. The publisher and the connections to the broker are closed.
//  5. The connections to the database are closed.
//
// Each of the first three may take s.stopTimeout. Work that is not finished by
// then is rolled back, and repeated after the next start.
func (s *Service) stop(ctx context.Context, server *http.Server, consumed <-chan struct{}) error {
	s.health.stopping.Store(true)
	ctx, cancel := context.WithTimeout(ctx, s.stopTimeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil { // some requests have not ended: close their connections
		err = errors.Join(fmt.Errorf("service: stop http: %w", err), server.Close())
	}
	return errors.Join(err,
		stopError("consumers", s.stopConsumers(ctx, consumed)),
		stopError("forwarder", s.forwarder.Close()),
		stopError("connections", s.Close()))
}

// stopConsumers closes the router if it runs. It does not close a router that
// never ran, because Close would wait for handlers that never started.
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
