package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/servers"
)

// PrivatePostgres returns a private PostgreSQL server that the test may kill, freeze
// and fill. settings are lines of postgresql.conf. Starting it takes about half a
// second.
func PrivatePostgres(t testing.TB, settings ...string) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: settings})
	return private(t, server, err)
}

// PostgresAlone is like [Postgres], but on a private server. Use it for code that waits
// until all older transactions of the server have ended, such as watermill-sql's
// subscriber and package mover. There the transactions of other tests cannot delay it.
func PostgresAlone(t testing.TB) Database {
	t.Helper()
	server, err := postgresAlone()
	return newDatabase(t, server, err, withTables)
}

// PrivateRabbit returns a private RabbitMQ broker that the test may kill, freeze and
// block. settings are lines of rabbitmq.conf. Starting it takes about five seconds.
func PrivateRabbit(t testing.TB, settings ...string) *servers.Rabbit {
	t.Helper()
	server, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Settings: settings})
	return private(t, server, err)
}

// inTurn is the broker of PrivateRabbitInTurn.
var inTurn struct {
	sync.Mutex
	broker *servers.Rabbit // nil at first, and after a test that failed
	closes bool            // whether Main closes it
}

// PrivateRabbitInTurn returns a private broker that the test may freeze, block and
// restart. The tests of the package that call it have the same broker, one test after the
// other, because a start takes five seconds of a core. So the test must leave the broker
// running and as it was, apart from queues with unique names. A test that fails may leave it in any state:
// the next one gets a new broker.
func PrivateRabbitInTurn(t testing.TB) *servers.Rabbit {
	t.Helper()
	inTurn.Lock()
	t.Cleanup(func() {
		if t.Failed() && inTurn.broker != nil {
			if err := inTurn.broker.Close(); err != nil {
				t.Error(err)
			}
			inTurn.broker = nil
		}
		inTurn.Unlock()
	})
	if inTurn.broker == nil {
		server, err := servers.StartRabbit(context.WithoutCancel(t.Context()), servers.RabbitConfig{})
		if errors.Is(err, servers.ErrNotInstalled) {
			Without(t, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		inTurn.broker = server
	}
	if !inTurn.closes {
		inTurn.closes = true
		AtEnd(func() error {
			if inTurn.broker == nil {
				return nil
			}
			return inTurn.broker.Close()
		})
	}
	return inTurn.broker
}

// PrivateRabbitCluster returns a private cluster with the given number of brokers.
// Starting it takes about five seconds per broker.
func PrivateRabbitCluster(t testing.TB, nodes int) []*servers.Rabbit {
	t.Helper()
	all := []*servers.Rabbit{PrivateRabbit(t)}
	for len(all) < nodes {
		node, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Peer: all[0]})
		all = append(all, private(t, node, err))
	}
	return all
}

// PrivatePgbouncer returns a private connection pooler in front of a server. It pools
// transactions. settings are lines of pgbouncer.ini.
func PrivatePgbouncer(t testing.TB, server *servers.Postgres, settings ...string) *servers.Pgbouncer {
	t.Helper()
	pooler, err := servers.StartPgbouncer(t.Context(), servers.PgbouncerConfig{Server: server.Address(), Settings: settings})
	return private(t, pooler, err)
}

func private[Server interface{ Close() error }](t testing.TB, server Server, err error) Server {
	t.Helper()
	switch {
	case errors.Is(err, servers.ErrNotInstalled):
		Without(t, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}
