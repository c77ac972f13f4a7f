package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// A second service has a database of its own, with its own outbox and inbox, and shares only the
// broker with the first one. It handles the topic remote, and answers each message with a reply.
// The first service stores the effect of a remote message when it handles the reply, so the effect
// exists only after both services have handled their messages.
const (
	remote  = "remote"
	replies = "replies"
)

// branching is the role of the processes of the second service.
const branching = "branch"

// branchTables creates the business table of the second service. It has no unique constraint, so
// that a repeated effect is visible.
const branchTables = `CREATE TABLE effects (message_id text NOT NULL, intact boolean NOT NULL)`

const replySuffix = "+reply"

func (a *actor) branch(ctx context.Context, db *sql.DB) error {
	db.SetMaxOpenConns(12)
	db.SetMaxIdleConns(12)
	fwd, publisher, err := a.newForwarder(db)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, newLog(a.Name))
	if err != nil {
		return err
	}
	c := &consumer{actor: a, db: db}
	sub, err := c.subscriber(8)
	if err != nil {
		return err
	}
	if a.planted(plantInbox) {
		c.addNaive(router, remote, sub, reply, replies)
	} else {
		chain, err := once.NewConsumer(db, once.ConsumerConfig{
			Dedup: dedup.Config{Retention: retention, MaxDuplicateAge: retention, LockTimeout: inboxLockTimeout},
			Retry: retry.Config{
				Policy: retry.Policy{Immediate: 1, Delayed: 2, Base: 100 * time.Millisecond}, Lease: consumerLease, PollInterval: a.Poll,
			},
			Logger: newLog(a.Name), MeterProvider: a.tally.meters,
		})
		if err != nil {
			return err
		}
		chain.AddHandler(router, remote, remote, sub, reply)
	}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(ctx) }()
	return errors.Join(router.Run(ctx), <-ended, publisher.Close())
}

func reply(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id, intact) VALUES ($1, $2)`,
		msg.UUID, bytes.Equal(msg.Payload, payload(msg.UUID, plain)))
	return []*message.Message{once.To(replies, event{id: msg.UUID + replySuffix, kind: plain}.message())}, err
}

// effectOf returns the id under which the effect of a message is stored. For a reply,
// this is the id of the message that the reply answers.
func effectOf(consumer, id string) string {
	if consumer == replies {
		return strings.TrimSuffix(id, replySuffix)
	}
	return id
}

func (w *world) prepareBranch(ctx context.Context) (err error) {
	if _, err := w.db.ExecContext(ctx, `CREATE DATABASE branch OWNER `+user); err != nil {
		return err
	}
	if w.branch, err = sql.Open("postgres", w.dsn(user, "branch")); err != nil {
		return err
	}
	w.branch.SetMaxOpenConns(4)
	if err := schema.Up(ctx, w.branch, schema.Config{}); err != nil {
		return err
	}
	_, err = w.branch.ExecContext(ctx, branchTables)
	return err
}

// beginBranch starts the process of the second service. The process connects to the
// servers without proxies.
func (w *world) beginBranch(plant string) error {
	m := &member{
		life: life{
			Role: branching, Plant: plant, Quorum: w.quorum, Poll: w.poll,
			DSN:  w.dsn(user, "branch") + lockTimeout,
			AMQP: w.amqpURL(w.rabbit.Address()), Nodes: w.addresses(),
		},
		dir: w.dir, base: branching, program: w.program, before: make(map[string]int64), exits: make(map[int]int64),
	}
	w.members = append(w.members, m)
	return m.start()
}

// services checks that the second service has applied each remote message once, and that
// its tables contain no unfinished rows.
func (a *audit) services(ctx context.Context) error {
	twice, err := idsIn(ctx, a.branch, `SELECT message_id FROM effects GROUP BY message_id HAVING COUNT(*) > 1`)
	if err != nil {
		return err
	}
	a.Doubled += len(twice)
	a.example("handled twice by the second service", twice)
	wrong, err := idsIn(ctx, a.branch, `
		SELECT 'altered: ' || message_id FROM effects WHERE NOT intact
		UNION ALL SELECT 'in the outbox: ' || message_id FROM once_outbox
		UNION ALL SELECT 'dead letter: ' || message_id FROM once_outbox_dead
		UNION ALL SELECT state || ': ' || message_id FROM once_parked`)
	if len(wrong) > 0 {
		a.wrongf("messages of the second service: %s", strings.Join(wrong[:min(len(wrong), 20)], ", "))
	}
	return err
}

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
