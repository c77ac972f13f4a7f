package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/servers"
)

// PrivatePostgres returns a private PostgreSQL server that the test may kill, freeze
// and fill. Each of the settings is a line of postgresql.conf. The start of the server
// takes about half a second.
func PrivatePostgres(t testing.TB, settings ...string) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: settings})
	return private(t, server, err)
}

// PostgresAlone is like [Postgres], but on a private server. Use it for code that waits
// until all older transactions of the server have ended, such as watermill-sql's
// subscriber and package mover. On a private server, the transactions of other tests
// cannot delay such code.
func PostgresAlone(t testing.TB) Database {
	t.Helper()
	server, err := postgresAlone()
	return newDatabase(t, server, err, withTables)
}

// PrivateRabbit returns a private RabbitMQ broker that the test may kill, freeze and
// block. Each of the settings is a line of rabbitmq.conf. The start of the broker takes
// about five seconds.
func PrivateRabbit(t testing.TB, settings ...string) *servers.Rabbit {
	t.Helper()
	server, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Settings: settings})
	return private(t, server, err)
}

// inTurn is the broker of PrivateRabbitInTurn.
var inTurn struct {
	sync.Mutex
	broker *servers.Rabbit // nil at first, and after a test that failed
	closes bool            // Main will close the broker
}

// PrivateRabbitInTurn returns a private broker that the test may freeze, block and
// restart. The tests of a package use this broker one after another, because the start
// of a broker takes five seconds of CPU time. So a test must leave the broker running
// and unchanged, apart from queues with unique names. If a test fails, it may leave the
// broker in any state, and the next test gets a new broker.
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

// PrivateRabbitCluster returns a private cluster with the given number of brokers. The
// start takes about five seconds for each broker.
func PrivateRabbitCluster(t testing.TB, nodes int) []*servers.Rabbit {
	t.Helper()
	all := []*servers.Rabbit{PrivateRabbit(t)}
	for len(all) < nodes {
		node, err := servers.StartRabbit(t.Context(), servers.RabbitConfig{Peer: all[0]})
		all = append(all, private(t, node, err))
	}
	return all
}

// PrivatePgbouncer returns a private connection pooler in front of a server. Unless the
// settings change its mode, it gives a client a connection to the server for one
// transaction at a time. Each of the settings is a line of pgbouncer.ini.
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
