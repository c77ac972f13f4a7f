package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Run runs the service until ctx ends or a part of the service fails. Then it stops all
// parts. Call it only once. When it returns, all goroutines have ended, and all
// connections are closed.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	defer listener.Close() // if the server has run, it has closed the listener too
	server := newServer(s.Handler())

	var running sync.WaitGroup
	failed := make(chan error, 4)
	start := func(name string, part func() error) {
		running.Go(func() {
			err := part()
			if err == nil {
				err = errEnded
			}
			failed <- fmt.Errorf("service: %s: %w", name, err)
		})
	}
	// The parts must not see the end of ctx, because stop stops them one after the
	// other.
	parts := context.WithoutCancel(ctx)
	consuming, abandon := context.WithCancel(parts)
	defer abandon()

	// The consumers start first, so that they are running when the first event is sent.
	// HTTP starts last, when every other part is running.
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
		start("idempotency keys", func() error { return s.keys.Run(ctx) }) // forgets old keys
		start("http", func() error { return server.Serve(listener) })
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	err = errors.Join(err, s.stop(parts, server, abandon, consumed))
	running.Wait()
	return err
}

// errEnded reports that a part has returned without an error before it was stopped.
var errEnded = errors.New("ended by itself")

// awaitConsumers waits until all consumers have subscribed. If ctx ends first, it calls
// the function abandon, and waits until the router has ended.
func (s *Service) awaitConsumers(ctx context.Context, abandon func(), failed <-chan error) error {
	defer context.AfterFunc(ctx, abandon)()
	select {
	case <-s.router.Running():
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
		return nil
	case <-ctx.Done(): // the forwarder may still be waiting for the database
		return nil
	case err := <-failed:
		return err
	}
}

// stop stops the parts in this order, so that each part can still use the parts after
// it:
//
//  1. HTTP accepts no new orders, and answers the requests that have begun.
//  2. The console stops the changes of operators. A replay is paused.
//  3. The consumers finish the messages that they are handling. The events of
//     these messages are in the outbox. Other messages stay in their queues.
//  4. The forwarder waits for the confirms of the events that it has sent. The
//     other events stay in the outbox, for the next start or another instance.
//  5. The publisher and the connections to the broker are closed.
//  6. The connections to the database are closed.
//
// HTTP, the consumers and the forwarder may each take s.stopTimeout. Work that is not
// finished after this time is rolled back, and repeated after the next start.
func (s *Service) stop(ctx context.Context, server *http.Server, abandon func(), consumed <-chan struct{}) error {
	close(s.stopping)
	ctx, cancel := context.WithTimeout(ctx, s.stopTimeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if err != nil { // some requests are still running, so close their connections
		err = errors.Join(fmt.Errorf("service: stop http: %w", err), server.Close())
	}
	return errors.Join(err,
		stopError("console", s.console.Close()),
		stopError("consumers", s.stopConsumers(abandon, consumed)),
		stopError("forwarder", s.forwarder.Close()),
		stopError("connections", s.Close()))
}

// stopConsumers closes the router if it runs. Close of a router that does not run yet would wait for
// handlers that never start, so its start is abandoned.
func (s *Service) stopConsumers(abandon func(), consumed <-chan struct{}) error {
	select {
	case <-s.router.Running():
		return s.router.Close()
	default:
		abandon()
		<-consumed
		return nil
	}
}

func stopError(part string, err error) error {
	if err != nil {
		return fmt.Errorf("service: stop %s: %w", part, err)
	}
	return nil
}
