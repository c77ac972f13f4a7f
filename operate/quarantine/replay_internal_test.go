package quarantine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// An entry is discarded while a replay with Force is about to include it. The entry
// stays discarded, so the inbox must keep the id of its message.
func TestTrap72ForcedReplaySparesDiscardedEntries(t *testing.T) {
	t.Parallel()
	for when, table := range map[string]string{
		"when it is to be moved":     "once_parked IN SHARE MODE",
		"when it is to be forgotten": "once_inbox",
	} {
		t.Run(when, func(t *testing.T) { discardDuringReplay(t, table) })
	}
}

// discardDuringReplay discards an entry while the replay of this entry waits for a lock
// on the given table.
func discardDuringReplay(t *testing.T, table string) {
	t.Helper()
	db := kit.Postgres(t)
	s := newTestTable(t, db)
	to := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
	failure := parkedrows.Failure{Err: errHandler, Reason: "failed"}
	kit.OK(t, kit.Err(s.parked.Quarantine(t.Context(), to, message.NewMessage("m1", nil), failure, nil)))
	replay, err := s.replays.Start(t.Context(), operate.Act{Actor: "test"}, operate.Filter{All: true}, operate.Plan{Force: true})
	kit.OK(t, err)

	// This transaction does the same as Discard. The replay reaches the inbox in the
	// middle of the transaction.
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `LOCK TABLE `+table)
	advanced := make(chan error, 1)
	go func() {
		_, _, err := s.replays.Advance(t.Context(), replay, 10)
		advanced <- err
	}()
	kit.Eventually(t, 20*time.Second, "the replay waits", func() bool {
		var waiting bool
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
			WHERE NOT granted AND datname = current_database())`).Scan(&waiting))
		return waiting
	})
	end := tx.Commit
	if _, err := tx.ExecContext(t.Context(), `SET lock_timeout = 100; UPDATE once_parked SET state = 'discarded', finished_at = now();
		INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', 'c', '')`); err != nil {
		end = tx.Rollback // the replay has locked the entry, so it is not discarded
	}
	kit.OK(t, errors.Join(end(), <-advanced))
	var state string
	var known bool
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT state, EXISTS (SELECT 1 FROM once_inbox) FROM once_parked`).Scan(&state, &known))
	if state == parkedrows.Discarded && !known {
		t.Error("it is discarded, and a late copy of it would run")
	}
}

// The lease ends after the transaction that extends it has begun, but before the
// transaction reaches the row of the replay. This happens in a process that was stopped
// for some time. Another replay has begun meanwhile, so the lease must not be extended.
func TestTrap52LeaseThatEndsDuringALockWaitIsNotExtended(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newTestTable(t, db)
	to := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
	failure := parkedrows.Failure{Err: errHandler, Reason: "failed"}
	kit.OK(t, kit.Err(s.parked.Quarantine(t.Context(), to, message.NewMessage("m1", nil), failure, nil)))
	replay, err := s.replays.Start(t.Context(), operate.Act{Actor: "test"}, operate.Filter{All: true}, operate.Plan{})
	if err != nil || replay.ID == 0 { // a replay of nothing has no row and no lease
		t.Fatalf("%v, replay %d", err, replay.ID)
	}
	other := kit.Begin(t, db)
	defer func() { _ = other.Rollback() }()
	kit.Exec(t, other, `LOCK TABLE once_replays IN SHARE ROW EXCLUSIVE MODE`)
	advanced := make(chan error, 1)
	go func() {
		_, _, err := s.replays.Advance(t.Context(), replay, 10)
		advanced <- err
	}()
	kit.Eventually(t, 20*time.Second, "it waits", func() (waits bool) {
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_locks
			WHERE NOT granted AND relation = 'once_replays'::regclass)`).Scan(&waits))
		return waits
	})
	kit.Exec(t, other, `UPDATE once_replays SET lease_until = clock_timestamp()`)
	kit.Exec(t, other, `
		INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, token, lease_until)
		SELECT consumer, filter, plan, actor, why, state, total, until_id, 'another', clock_timestamp() + interval '1 hour'
		FROM once_replays`)
	kit.OK(t, other.Commit())
	if err := <-advanced; !errors.Is(err, operate.ErrReplayLost) {
		t.Errorf("two replays of a consumer run: %v", err)
	}
}

// The context of a replay may end just after the commit that begins or ends the replay.
func TestReplayIsReadAfterItsContextHasEnded(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		to := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		failure := parkedrows.Failure{Err: errHandler, Reason: "failed"}
		kit.OK(t, kit.Err(s.parked.Quarantine(t.Context(), to, message.NewMessage("m1", nil), failure, nil)))
		r, err := s.replays.Start(t.Context(), operate.Act{Actor: "test"}, operate.Filter{All: true}, operate.Plan{})
		kit.OK(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err = s.replays.Reload(ended, r); err != nil || r.State != operate.ReplayRunning {
			t.Errorf("%v, %+v", err, r)
		}
	})
}
