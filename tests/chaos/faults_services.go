package main

import (
	"context"
	"fmt"
	"syscall"

	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// serviceFaults are faults of a second service with a database of its own.
func serviceFaults() []fault {
	return []fault{{
		name: "two-services", on: branching,
		about: "a second service with its own database is killed while it answers, loses its sessions, and gets copies",
		// A fault of the broker or of PostgreSQL hits both services.
		alone:  true,
		strike: twoServices,
	}}
}

const remoteCount = 60

// twoServices writes messages that the second service answers. When some messages are
// answered, it kills the process of the second service, ends its database sessions, and
// publishes copies. Each message must take effect once in both databases.
func twoServices(ctx context.Context, s *strike) (string, error) {
	const name = "once.dedup.handled/duplicate"
	skipped := s.growing(func() int64 { return s.count(branching, name) })
	var events []event
	var copies []amqp.Publishing
	for n := range remoteCount {
		e := event{id: fmt.Sprintf("remote-%d.%d", s.Uint64(), n), kind: plain, to: remote}
		same, err := rabbit.Marshaler{}.Marshal(e.message())
		if err != nil {
			return "", err
		}
		events, copies = append(events, e), append(copies, same)
	}
	ids := pq.Array(idsOf(events))
	if err := s.write(ctx, events...); err != nil {
		return "", err
	}
	answered := func(least int64) func() bool {
		return func() bool {
			var n int64
			err := s.branch.QueryRowContext(ctx, `SELECT COUNT(*) FROM effects WHERE message_id = ANY($1)`, ids).Scan(&n)
			return err == nil && n >= least
		}
	}
	if err := s.until(ctx, "the second service has handled some", answered(1+s.Int64N(remoteCount/2))); err != nil {
		return "", err
	}
	<-s.pick(branching).signal(syscall.SIGKILL).gone
	if err := s.publish(ctx, remote, copies...); err != nil {
		return "", err
	}
	if err := s.until(ctx, "the second service has handled more", answered(remoteCount/2)); err != nil {
		return "", err
	}
	ended := s.number(ctx, `SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'branch'`)
	if err := s.until(ctx, "all answers have arrived", func() bool {
		return s.number(ctx, `SELECT COUNT(DISTINCT message_id) FROM effects WHERE message_id = ANY($1)`, ids) == remoteCount
	}); err != nil {
		return "", err
	}
	if s.pick(branching).planted(plantInbox) {
		return "copies were published", nil // without an inbox nothing is ignored
	}
	if err := s.until(ctx, "copies are ignored", func() bool { return skipped() > 0 }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d answers, %d copies were ignored, %d sessions ended", remoteCount, skipped(), ended), nil
}
