package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

func lockFaults() []fault {
	return []fault{
		{
			name: "lock-timeout", about: "a lock on the business's table that writers cannot wait for", on: writing, alone: true, writes: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.locked(ctx, `LOCK TABLE business IN SHARE MODE`, writing)
			},
		},
		{
			name: "outbox-locked", about: "a lock on the outbox that neither writers nor forwarders can wait for",
			on: writing, alone: true, writes: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.locked(ctx, `LOCK TABLE once_outbox IN ACCESS EXCLUSIVE MODE`, writing)
			},
		},
		{
			name: "inbox-locked", about: "a lock on the inbox that consumers cannot wait for", on: consuming, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.locked(ctx, `LOCK TABLE once_inbox IN ACCESS EXCLUSIVE MODE`, consuming)
			},
		},
		{
			name: "effects-locked", about: "a lock on the table of the handlers, for longer than the inbox waits for locks",
			on: consuming, alone: true, strike: effectsLocked,
		},
		{
			name: "deadlock", about: "two transactions with events wait for each other", on: writing, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.contend(ctx, doDeadlock, "40P01")
			},
		},
		{
			name: "serialization-failure", about: "two transactions with events that cannot be put in an order", on: writing, alone: true,
			strike: func(ctx context.Context, s *strike) (string, error) {
				return s.contend(ctx, doSerialize, "40001")
			},
		},
		{
			name: "copy-in-progress", about: "a copy of a message is being handled, and is rolled back", on: consuming, alone: true,
			strike: copyInProgress,
		},
		{
			name: "late-commit", about: "an event of a low position is committed after those behind it were sent",
			on: writing, alone: true, writes: true,
			strike: lateCommit,
		},
		{
			name: "publish-first", about: "transactions with events of one key publish them, and then wait for each other's row lock",
			on: writing, alone: true, strike: publishFirst,
		},
	}
}

// locked takes a lock, and holds it until a process of the role has given up waiting for
// it. A process gives up when PostgreSQL ends the wait (lock_timeout), or when the
// process cancels the statement.
func (s *strike) locked(ctx context.Context, lock, role string) (string, error) {
	timedOut, canceled := postgresError("55P03"), postgresError("57014")
	name := timedOut + " or " + canceled
	failed := s.growing(func() int64 { return sum(s.pg[role], timedOut)() + sum(s.pg[role], canceled)() })
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() //nolint:errcheck // the rollback releases the lock
	if _, err := tx.ExecContext(ctx, lock); err != nil {
		return "", err
	}
	return s.seen(ctx, name, failed, nil)
}

// effectsLocked holds a lock that handlers need. It releases the lock when a handler has
// waited for twice as long as inboxLockTimeout. The handlers must then continue.
func effectsLocked(ctx context.Context, s *strike) (string, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() //nolint:errcheck // the rollback releases the lock
	if _, err := tx.ExecContext(ctx, `LOCK TABLE effects IN SHARE MODE`); err != nil {
		return "", err
	}
	var waiting int64
	err = s.until(ctx, "a handler waits", func() bool {
		waiting = s.number(ctx, `
			SELECT COUNT(*) FROM pg_locks WHERE relation = 'effects'::regclass AND NOT granted AND waitstart < now() - make_interval(secs => $1)`,
			(2 * inboxLockTimeout).Seconds())
		return waiting > 0
	})
	return fmt.Sprintf("%d handlers waited", waiting), err
}

func (s *strike) contend(ctx context.Context, do, state string) (string, error) {
	failed := s.growing(sum(s.pg[writing], postgresError(state)))
	m := s.pick(writing)
	for range 3 {
		m.tell(order{Do: do})
	}
	return s.seen(ctx, postgresError(state), failed, nil)
}

// copyInProgress inserts the id of a message into the inbox and does not commit. While
// this transaction is open, nobody knows whether the message is a duplicate, so the
// consumer must wait. After the rollback, it must handle the message.
func copyInProgress(ctx context.Context, s *strike) (string, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() //nolint:errcheck // the fault is a transaction that rolls back
	e := event{id: fmt.Sprintf("copied-%d", s.Uint64()), kind: plain}
	var pid int
	if err := tx.QueryRowContext(ctx, `
		INSERT INTO once_inbox (message_id, consumer, digest) VALUES ($1, $2, '') RETURNING pg_backend_pid()`,
		e.id, ledger).Scan(&pid); err != nil {
		return "", err
	}
	if err := s.write(ctx, e); err != nil {
		return "", err
	}
	var blocked int64
	err = s.until(ctx, "a copy waits for it", func() bool {
		blocked = s.number(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, pid)
		return blocked > 0
	})
	s.hold(ctx)
	return fmt.Sprintf("%d sessions waited for it", blocked), err
}

func lateCommit(ctx context.Context, s *strike) (string, error) {
	var behind int64
	key := fmt.Sprintf("late-%d", s.Uint64())
	err := outbox.InTx(ctx, s.db, func(tx *sql.Tx, events message.Publisher) error {
		if err := put(ctx, tx, events, event{id: key, kind: plain, key: key, number: 1}); err != nil {
			return err
		}
		sent := s.growing(func() int64 { return s.count(forwarding, "once.forwarder.published/confirmed") })
		return s.until(ctx, "200 others were sent", func() bool {
			behind = sent()
			return behind > 200
		})
	})
	if err != nil {
		return "", err
	}
	err = s.write(ctx, event{id: key + "-next", kind: plain, key: key, number: 2})
	return fmt.Sprintf("%d others were sent before it was committed", behind), err
}

const publishFirstRounds = 30

// publishFirst commits pairs of transactions with events of one key. The first
// transaction locks the key and a row, and then publishes. The second one locks the key,
// publishes, and then locks the same row. Without the lock of the key, the second
// transaction would publish its event while it waits for the row, and its event could be
// sent first.
func publishFirst(ctx context.Context, s *strike) (string, error) {
	safe := !s.pick(writing).planted(plantKeyLock)
	for range publishFirstRounds {
		key := fmt.Sprintf("pair-%d", s.Uint64())
		if err := s.exec(ctx, `INSERT INTO keys (ordering_key, number) VALUES ($1, 2)`, key); err != nil {
			return "", err
		}
		lock := func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT FROM keys WHERE ordering_key = $1 FOR UPDATE`, key)
			return err
		}
		begin := func(tx *sql.Tx) error {
			if safe {
				return outbox.LockKey(ctx, tx, key)
			}
			return nil
		}
		end := func(tx *sql.Tx, to message.Publisher, number int64) error {
			return errors.Join(put(ctx, tx, to, event{id: fmt.Sprintf("%s.%d", key, number), kind: plain, key: key, number: number}), lock(tx))
		}

		second := make(chan error, 1)
		err := outbox.InTx(ctx, s.db, func(first *sql.Tx, to message.Publisher) error {
			if err := errors.Join(begin(first), lock(first)); err != nil {
				return err
			}
			pid := make(chan int, 1)
			go func() {
				second <- outbox.InTx(ctx, s.db, func(tx *sql.Tx, to message.Publisher) error {
					var own int
					if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&own); err != nil {
						return err
					}
					pid <- own
					return errors.Join(begin(tx), end(tx, to, 2))
				})
			}()
			var other int
			select {
			case other = <-pid:
			case err := <-second:
				return err
			}
			if err := s.until(ctx, "the second transaction waits for the first", func() bool {
				return s.number(ctx, `SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'`, other) == 1
			}); err != nil {
				return err
			}
			return end(first, to, 1)
		})
		if err == nil {
			err = <-second
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d transactions waited for the one before them", publishFirstRounds), nil
}
