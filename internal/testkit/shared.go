package testkit

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/watermill-once/once/internal/servers"
)

// The servers of this process. The first test that needs them finds or starts them.
var (
	postgresServer = sync.OnceValues(func() (*postgres, error) {
		server, err := servers.ResolvePostgres(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		atEnd(server.Close)
		p, err := newPostgres(context.Background(), server.URL)
		if err != nil {
			return nil, err
		}
		atEnd(p.admin.Close)
		return p, nil
	})

	rabbitServer = sync.OnceValues(func() (*rabbit, error) {
		server, err := servers.ResolveRabbit(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		atEnd(server.Close)
		return newRabbit(context.Background(), server)
	})
)

// closers are the functions that [Main] calls at its end.
var closers struct {
	sync.Mutex
	list []func() error
}

func atEnd(closer func() error) {
	closers.Lock()
	defer closers.Unlock()
	closers.list = append(closers.list, closer)
}

// closeShared calls the closers in reverse order.
func closeShared() error {
	closers.Lock()
	defer closers.Unlock()
	var errs []error
	for _, closer := range slices.Backward(closers.list) {
		errs = append(errs, closer())
	}
	closers.list = nil
	return errors.Join(errs...)
}
