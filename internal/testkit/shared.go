package testkit

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/watermill-once/once/internal/servers"
)

// Each of these functions returns a server that all tests of this process share. The
// first call finds or starts the server.
var (
	postgresServer = sync.OnceValues(func() (*postgres, error) {
		server, err := servers.ResolvePostgres(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		return sharedPostgres(server.URL)
	})

	// postgresAlone is the server of PostgresAlone.
	postgresAlone = sync.OnceValues(func() (*postgres, error) {
		server, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		return sharedPostgres(server.DSN("postgres"))
	})

	rabbitServer = sync.OnceValues(func() (*rabbit, error) {
		server, err := servers.ResolveRabbit(context.Background(), servers.ResolveConfig{Output: os.Stderr})
		if err != nil {
			return nil, err
		}
		AtEnd(server.Close)
		r, err := newRabbit(context.Background(), server)
		if err != nil {
			return nil, err
		}
		AtEnd(r.close)
		return r, nil
	})
)

func sharedPostgres(dsn string) (*postgres, error) {
	p, err := newPostgres(context.Background(), dsn)
	if err != nil {
		return nil, err
	}
	AtEnd(p.close)
	return p, nil
}

// closers are the functions that [Main] calls at its end.
var closers struct {
	sync.Mutex
	list []func() error
}

// AtEnd makes [Main] call the function closer after the tests. The function that was
// added last is called first.
func AtEnd(closer func() error) {
	closers.Lock()
	defer closers.Unlock()
	closers.list = append(closers.list, closer)
}

// closeShared calls the functions of AtEnd, the last one first.
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
