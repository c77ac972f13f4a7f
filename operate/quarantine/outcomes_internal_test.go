package quarantine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// replaying begins a replay of n new entries. No entry is replayed yet.
func replaying(t *testing.T, s *table, n int) *rows.Replay {
	t.Helper()
	to := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
	for i := range n {
		msg := message.NewMessage(fmt.Sprintf("m%d", i+1), nil)
		kit.OK(t, kit.Err(s.parked.Quarantine(t.Context(), to, msg, parkedrows.Failure{Err: errHandler, Reason: "failed"}, nil)))
	}
	r, err := s.replays.Start(t.Context(), act, operate.Filter{All: true}, operate.Plan{})
	kit.OK(t, err)
	return r
}

func look(t *testing.T, s *table, r *rows.Replay) *rows.Replay {
	t.Helper()
	r, err := s.replays.Renew(t.Context(), r)
	kit.OK(t, err)
	return r
}

func advance(t *testing.T, s *table, r *rows.Replay, n int) {
	t.Helper()
	moved, _, err := s.replays.Advance(t.Context(), r, n)
	if err != nil || moved != n {
		t.Fatalf("%d given back, %v", moved, err)
	}
}

// stands checks the counts of a replay.
func stands(t *testing.T, r *rows.Replay, want string) {
	t.Helper()
	if got := fmt.Sprintf("%d given back: %d resolved, %d failed, %d wait", r.Changed, r.Resolved, r.Failed, r.Waiting); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// settle ends the claims of fail+handle due rows: the first rows fail, and the rest are
// handled. It returns the IDs of the failed rows.
func settle(t *testing.T, s *table, fail, handle int) (failed []int64) {
	t.Helper()
	sel := selection
	sel.Limit = fail + handle
	claimed := claim(t, s, sel)
	if len(claimed) != fail+handle {
		t.Fatalf("%d claimed", len(claimed))
	}
	for i, c := range claimed {
		var err error
		if i < fail {
			err = quarantineClaim(t.Context(), s, c.Claim, parkedrows.Failure{Err: errHandler, Reason: "failed"})
			failed = append(failed, c.ID)
		} else {
			err = s.parked.Resolve(t.Context(), c.Claim)
		}
		kit.OK(t, err)
	}
	return failed
}

// A failed entry counts as failed, whatever happens to it afterwards. This does not
// depend on whether the process that runs the replay has seen the failure.
func TestOutcomesOfAReplayAddUp(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		r := look(t, s, replaying(t, s, 12))
		stands(t, r, "0 given back: 0 resolved, 0 failed, 0 wait")
		advance(t, s, r, 10)
		r = look(t, s, r)
		stands(t, r, "10 given back: 0 resolved, 0 failed, 10 wait")

		failed := settle(t, s, 4, 3)
		old, err := s.get(t.Context(), failed[0])
		kit.OK(t, err)
		kit.OK(t, kit.Err(s.edit(t.Context(), act, old, message.NewMessage("edited", nil), false)))
		kit.OK(t, s.discard(t.Context(), act, failed[1:2]))
		kit.OK(t, s.replay(t.Context(), act, failed[2:3]))
		r = look(t, s, r)
		stands(t, r, "10 given back: 3 resolved, 4 failed, 3 wait")
		kit.OK(t, s.replay(t.Context(), act, failed[3:]))
		settle(t, s, 0, 6) // this also handles the entries that were edited and replayed by hand
		advance(t, s, r, 2)
		r = look(t, s, r)
		stands(t, r, "12 given back: 6 resolved, 4 failed, 2 wait")
		others, err := s.replays.Get(t.Context(), r.ID)
		kit.OK(t, err)
		stands(t, &rows.Replay{Replay: others}, "12 given back: 6 resolved, 4 failed, 2 wait")
		settle(t, s, 1, 1)
		stands(t, look(t, s, r), "12 given back: 7 resolved, 5 failed, 0 wait")
	})
}

// After a crash, or after a commit with an unknown outcome, the entries are counted
// again.
func TestResumedReplayCountsEarlierEntries(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		r := replaying(t, s, 12)
		unknown := *r
		advance(t, s, &unknown, 4)
		settle(t, s, 1, 2)
		r = look(t, s, r)
		stands(t, r, "4 given back: 2 resolved, 1 failed, 1 wait")
		advance(t, s, r, 4)
		settle(t, s, 1, 2)
		kit.Exec(t, db, `UPDATE once_replays SET lease_until = started_at`)
		resumed, err := s.replays.Restart(t.Context(), act, r.ID)
		kit.OK(t, err)
		resumed = look(t, s, resumed)
		stands(t, resumed, "8 given back: 4 resolved, 2 failed, 2 wait")
		advance(t, s, resumed, 4)
		settle(t, s, 2, 3)
		stands(t, look(t, s, resumed), "12 given back: 7 resolved, 4 failed, 1 wait")
		if _, err := s.replays.Renew(t.Context(), r); !errors.Is(err, operate.ErrReplayLost) {
			t.Errorf("who had it before: %v", err)
		}
	})
}

// Each step of a replay reads only the waiting entries, whatever statistics PostgreSQL
// has.
func TestReplayProgressReadsOnlyWaitingEntries(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
	s := newTestTable(t, db)
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, db, query)
	}
	exec(`ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	exec(`ANALYZE once_parked`)
	exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'c', 't', gen_random_uuid()::text, '', '', 'quarantined', now() FROM generate_series(1, 20000)`)
	r, err := s.replays.Start(t.Context(), act, operate.Filter{All: true}, operate.Plan{Force: true})
	kit.OK(t, err)
	exec(`UPDATE once_parked SET replays = 1, replay_id = (SELECT MAX(id) FROM once_replays), finished_at = now(),
		state = CASE WHEN id <= 20 THEN 'waiting' WHEN id % 3 = 0 THEN 'quarantined' ELSE 'resolved' END
		WHERE id <= 10000`)
	exec(`UPDATE once_replays SET replayed = 10000, after_id = 10000`)
	r = look(t, s, r)
	stands(t, r, "10000 given back: 6653 resolved, 3327 failed, 20 wait")

	for _, known := range []string{"when it was empty", "now"} {
		before := kit.RowsRead(t, db, "once_parked")
		advance(t, s, r, 10)
		given := kit.RowsRead(t, db, "once_parked")
		r = look(t, s, r)
		looked := kit.RowsRead(t, db, "once_parked")
		if rows := given - before; rows > 100 {
			t.Errorf("the table was looked at %s: %d rows to give 10 back", known, rows)
		}
		if rows := looked - given; rows > 100 {
			t.Errorf("the table was looked at %s: %d rows for a look at %d that wait", known, rows, r.Waiting)
		}
		exec(`ANALYZE once_parked`)
	}
}
