package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

const onPostgres = "PostgreSQL"

func postgresFaults() []fault {
	return []fault{
		{
			name: "postgres-kill", about: "SIGKILL of PostgreSQL and all its sessions", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.outage(ctx, s.postgres.Kill, s.postgres.Restart)
			},
		},
		{
			name: "postgres-restart", about: "PostgreSQL is stopped in good order, and started", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.outage(ctx, s.postgres.Stop, s.postgres.Restart)
			},
		},
		{
			name: "postgres-freeze", about: "SIGSTOP of PostgreSQL, then SIGCONT", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				s.postgres.Freeze()
				defer s.postgres.Thaw()
				err := s.until(ctx, "the database does not answer", func() bool { return s.mute(ctx, 2*time.Second) })
				return "it did not answer for 2s", err
			},
		},
		{
			name: "backend-kill", about: "SIGKILL of one session's process: PostgreSQL ends all others and recovers", on: onPostgres,
			strike: backendKill,
		},
		{
			name: "backend-freeze", about: "SIGSTOP of one session's process in the middle of a transaction, then SIGCONT", on: onPostgres,
			strike: backendFreeze,
		},
		{
			name: "backends-terminated", about: "pg_terminate_backend of all sessions", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				n, err := s.terminate(ctx)
				return fmt.Sprintf("%d sessions were terminated", n), err
			},
		},
		{
			name: "login-revoked", about: "the role may not log in any more, and its sessions are terminated", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.withRole(ctx, `NOLOGIN`, `LOGIN`, "28000")
			},
		},
		{
			name: "connections-exhausted", about: "the role may have two connections, and its sessions are terminated", on: onPostgres,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.withRole(ctx, `CONNECTION LIMIT 2`, `CONNECTION LIMIT -1`, "53300")
			},
		},
		{
			name: "disk-full", about: "there is no room for the outbox", on: onPostgres, alone: true, writes: true,
			strike: diskFull,
		},
		{
			name: "handler-disk-full", about: "there is no room for what a handler writes", on: onPostgres, alone: true,
			strike: handlerDiskFull,
		},
		{
			name: "snapshot-held", about: "an old snapshot keeps dead rows from being removed", on: onPostgres,
			strike: snapshotHeld,
		},
	}
}

// mute reports whether the database gives no answer within the duration d. It pings in a
// separate goroutine, because the driver waits for a reply even after its context has
// ended.
func (s *strike) mute(ctx context.Context, d time.Duration) bool {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_ = s.db.PingContext(ctx)
	}()
	select {
	case <-answered:
		return false
	case <-time.After(d):
		return true
	}
}

// outage stops a server with the function end, and waits until a process has failed to
// connect. Then it starts the server again with the function restart.
func (s *strike) outage(ctx context.Context, end func(), restart func(context.Context) error) (string, error) {
	refused := s.growing(sum(s.proxies(), "unreachable"))
	end()
	err := s.until(ctx, "connections are refused", func() bool { return refused() > 0 })
	s.hold(ctx)
	return fmt.Sprintf("%d connections were refused", refused()), errors.Join(err, restart(context.WithoutCancel(ctx)))
}

func backendKill(ctx context.Context, s *strike) (string, error) {
	anew := s.growing(sum(s.proxies(s.pg), "connected"))
	var pid int
	if err := s.until(ctx, "there is a session", func() bool {
		return s.db.QueryRowContext(ctx, `SELECT pid FROM pg_stat_activity WHERE usename = $1 LIMIT 1`, user).Scan(&pid) == nil
	}); err != nil {
		return "", err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	err := s.until(ctx, "PostgreSQL has begun anew, and so have connections", func() bool {
		return anew() > 2 && s.number(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
	return fmt.Sprintf("session %d was killed, %d connections were made anew", pid, anew()), err
}

// backendFreeze uses SIGSTOP to stop a database session that is in a transaction. The session's
// client waits, and sessions that need its locks wait too.
func backendFreeze(ctx context.Context, s *strike) (string, error) {
	const inTransaction = `state IN ('active', 'idle in transaction') AND xact_start IS NOT NULL`
	var pid int
	defer func() {
		if pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGCONT) // if the session has ended, there is nothing to continue
		}
	}()
	if err := s.until(ctx, "a session in a transaction is stopped", func() bool {
		if s.db.QueryRowContext(ctx, `
			SELECT pid FROM pg_stat_activity WHERE usename = $1 AND `+inTransaction+` ORDER BY random() LIMIT 1`, user).Scan(&pid) != nil {
			return false
		}
		if syscall.Kill(pid, syscall.SIGSTOP) != nil {
			return false
		}
		if s.number(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1 AND `+inTransaction, pid) == 1 {
			return true
		}
		_ = syscall.Kill(pid, syscall.SIGCONT)
		return false
	}); err != nil {
		return "", err
	}
	var still int64
	err := s.until(ctx, "it has not moved for longer than a lock is waited for", func() bool {
		still = s.number(ctx, `
			SELECT (EXTRACT(epoch FROM clock_timestamp() - GREATEST(state_change, query_start)) * 1000)::bigint
			FROM pg_stat_activity WHERE pid = $1`, pid)
		return still > 2500
	})
	return fmt.Sprintf("session %d stood still in its transaction for %d ms", pid, still), err
}

func (s *strike) terminate(ctx context.Context) (n int64, err error) {
	err = s.until(ctx, "sessions were terminated", func() bool {
		n = s.number(ctx, `SELECT COUNT(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1`, user)
		return n > 0
	})
	return n, err
}

// withRole changes the database role of the processes, closes their sessions, and waits
// until a process gets an error. state is the SQLSTATE of this error. Then
// withRole undoes the change.
func (s *strike) withRole(ctx context.Context, change, back, state string) (string, error) {
	failed := s.growing(sum(s.proxies(s.pg), postgresError(state)))
	defer func() { _ = s.exec(context.WithoutCancel(ctx), `ALTER ROLE `+user+` `+back) }()
	if err := s.exec(ctx, `ALTER ROLE `+user+` `+change); err != nil {
		return "", err
	}
	if _, err := s.terminate(ctx); err != nil {
		return "", err
	}
	return s.seen(ctx, postgresError(state), failed, nil)
}

func diskFull(ctx context.Context, s *strike) (string, error) {
	if s.disk == nil {
		return "", fmt.Errorf("%w: it takes root, and Linux", errUnavailable)
	}
	name := postgresError("53100")
	failed := s.growing(sum(s.proxies(s.pg), name))
	defer func() { _ = s.disk.free() }()
	var failure error
	err := s.until(ctx, name, func() bool {
		failure = s.disk.fill()
		return failed() > 0 || failure != nil
	})
	s.hold(ctx)
	return fmt.Sprintf("%d times %s", failed(), name), errors.Join(err, failure)
}

// handlerDiskFull fills the disk while a handler writes to it. When the disk has free
// space again, the message must be applied. Before that, the handler fails more often
// than the message has attempts. The message is not given up on, because only every third
// call with this error counts as an attempt.
func handlerDiskFull(ctx context.Context, s *strike) (proof string, err error) {
	if s.disk == nil {
		return "", fmt.Errorf("%w: it takes root, and Linux", errUnavailable)
	}
	const calls = 7
	e := event{id: fmt.Sprintf("hoarded-%d", s.Uint64()), kind: hoarding}
	copied, err := rabbit.Marshaler{}.Marshal(e.message())
	if err != nil {
		return "", err
	}
	name := postgresError("53100")
	failed := s.growing(sum(s.pg[consuming], name))
	if err := s.quiet(ctx, func(*amqp.Channel) error { return s.disk.fill() }); err != nil {
		return "", errors.Join(err, s.disk.free())
	}
	err = s.publish(ctx, ledger, copied)
	if err == nil {
		err = s.until(ctx, name, func() bool { return failed() >= calls })
	}
	if err := errors.Join(err, s.disk.free()); err != nil {
		return "", err
	}
	if err := s.applied(ctx, e.id); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d times %s, then it was applied", failed(), name), s.write(ctx, e)
}

// errUnavailable means that this fault cannot be injected on this machine.
var errUnavailable = errors.New("cannot be made here")

// snapshotHeld keeps a snapshot and a transaction id open for a long time. The forwarders
// must continue. A forwarder would stop if it read only rows that are older than the
// oldest open transaction.
func snapshotHeld(ctx context.Context, s *strike) (string, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return "", err
	}
	defer tx.Rollback() //nolint:errcheck // the database may be down by then
	var pid int
	if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid() FROM pg_current_xact_id()`).Scan(&pid); err != nil {
		return "", err
	}
	var age int64
	err = s.until(ctx, "500 transactions behind it", func() bool {
		age = s.number(ctx, `SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid = $1`, pid)
		return age > 500
	})
	return fmt.Sprintf("it was held back for %d transactions", age), err
}
