package forwarder

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

var errRefused = errors.New("refused")

// ownerOfAll returns a store that owns every slot, and a function that runs statements
// on its database.
func ownerOfAll(t *testing.T, db kit.Database) (s *store, exec func(query string, args ...any)) {
	t.Helper()
	config := kit.Tables(t, db)
	d := kit.Dialect(t, config)
	s = newStore(db.DB, d)
	exec = func(query string, args ...any) {
		t.Helper()
		kit.Exec(t, db, query, args...)
	}
	exec(`UPDATE once_slots SET owner = $1`, s.owner)
	return s, exec
}

// If an attempt is recorded twice, because the outcome of the first commit was unknown,
// it must count as one attempt.
func TestAChargeThatIsMadeAgainIsOneAttempt(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata, attempts)
			VALUES (1, 'seldom', 't', 0, '', '{}', 4), (2, 'by hand', 't', 0, '', '{}', 2147483647)`)
		for range 2 {
			done := s.settle(t.Context(), &dispatch.Settlement{Charges: []dispatch.Charge{
				{Message: &dispatch.Message{Position: 1, ID: "seldom", Attempts: 4}, Attempts: 1, Err: errRefused, Cause: dispatch.Refused},
				{Message: &dispatch.Message{Position: 2, ID: "by hand", Attempts: 2147483647}, Attempts: 1, Err: errRefused, Cause: dispatch.Refused},
			}}, sendSuccessors)
			if done.Err != nil {
				t.Fatal(done.Err)
			}
			if done.Vanished {
				t.Fatal("done.Vanished is true")
			}
		}
		for id, want := range map[string]int{"seldom": 5, "by hand": 2147483647} {
			attempts := kit.One[int](t, db, `SELECT attempts FROM once_outbox WHERE message_id = $1`, id)
			if attempts != want {
				t.Fatalf("%s: attempts is %d, want %d", id, attempts, want)
			}
		}
	})
}

// If a row was removed by hand, or if another instance owns its slot, its attempt cannot be
// recorded. The Scheduler learns of it. The attempts of the other rows are recorded.
func TestAttemptOfARemovedRowIsReported(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		exec(`INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) VALUES (1, 'left', 't', 0, '', '{}')`)
		charge := func(position int64, id string) dispatch.Charge {
			return dispatch.Charge{
				Message: &dispatch.Message{Position: position, ID: id}, Attempts: 1, Err: errRefused, Cause: dispatch.Refused,
			}
		}
		batch := &dispatch.Settlement{Charges: []dispatch.Charge{charge(1, "left"), charge(2, "removed")}}
		if done := s.settle(t.Context(), batch, sendSuccessors); done.Err != nil || !done.Charges || !done.Vanished || !done.Wrote {
			t.Errorf("got %+v, want recorded attempts and a vanished row", done)
		}
	})
}

// Trap 1. If the commit of a settlement returns an error, its transaction may still be
// open, for example because the connection was lost. The cursor must not assume that the
// transaction has ended.
func TestTrap01_ASettlementThatFailedMayStillBeUnderWay(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s, exec := ownerOfAll(t, db)
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('1', 't', 0, '', '{}'), ('2', 't', 0, '', '{}')`)
	exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END'`)
	exec(`CREATE CONSTRAINT TRIGGER refuse AFTER DELETE OR UPDATE ON once_outbox DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION refuse()`)
	batches := []*dispatch.Settlement{
		{Confirmed: []*dispatch.Message{{Position: 1, ID: "1"}}},
		{Charges: []dispatch.Charge{{Message: &dispatch.Message{Position: 2, ID: "2"}, Attempts: 1, Err: errRefused, Cause: dispatch.Refused}}},
	}
	for _, batch := range batches {
		done := s.settle(t.Context(), batch, sendSuccessors)
		if done.Err == nil {
			t.Fatal("done.Err is nil")
		}
		if done.Wrote {
			t.Fatal("done.Wrote is true")
		}
	}
	exec(`DROP TRIGGER refuse ON once_outbox`)
	for _, batch := range batches {
		done := s.settle(t.Context(), batch, sendSuccessors)
		if done.Err != nil {
			t.Fatal(done.Err)
		}
		if !done.Wrote {
			t.Fatal("done.Wrote is false")
		}
	}
}

func sendSuccessors(string) AfterDead { return SendSuccessors }

// A blocked key remembers why it is blocked, and above which position its later messages
// are. A message that was committed late can be below the head.
func TestBlockedKeyRemembersWhereItsSuccessorsBegin(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		exec(`INSERT INTO once_outbox (position, message_id, topic, slot, ordering_key, payload, metadata) VALUES
			(11, 'refused', 't', 0, 'a', '', '{}'), (22, 'unknown', 't', 0, 'b', '', '{}'), (33, 'dead', 't', 0, 'c', '', '{}')`)
		row := func(position int64, id, key string) *dispatch.Message {
			return &dispatch.Message{Position: position, ID: id, Topic: "t", Key: key}
		}
		done := s.settle(t.Context(), &dispatch.Settlement{
			Charges: []dispatch.Charge{
				{Message: row(11, "refused", "a"), Err: errRefused, Cause: dispatch.Refused, SuccessorsAfter: 7},
				{Message: row(22, "unknown", "b"), Err: errRefused, Cause: dispatch.Unknown, SuccessorsAfter: 8},
			},
			Deaths: []dispatch.Death{{Message: row(33, "dead", "c"), Err: errRefused, SuccessorsAfter: 9}},
		}, func(string) AfterDead { return BlockKey })
		if done.Err != nil || done.Vanished {
			t.Fatalf("got %+v", done)
		}
		for key, want := range map[string]string{"a": "11 7 refused", "b": "22 8 unknown", "c": "33 9 dead"} {
			var position, after int64
			var reason string
			err := db.QueryRowContext(t.Context(), `SELECT position, successors_after, reason FROM once_blocked_keys WHERE ordering_key = $1`, key).
				Scan(&position, &after, &reason)
			if got := fmt.Sprint(position, after, " ", reason); err != nil || got != want {
				t.Errorf("key %q: got %q and %v, want %q", key, got, err, want)
			}
		}
	})
}

// If a step of an operation fails in the database, the operation must return the error
// and change nothing: the loop repeats it.
func TestOperationWithAFailedStepChangesNothing(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		d := kit.Dialect(t, config)
		exec := func(query string, args ...any) {
			kit.Exec(t, db, d.SQL(query), args...)
		}
		exec(`INSERT INTO {forwarders} (owner, lease_until, destination) VALUES ('gone', {after $1}, 'elsewhere')`, -60_000)
		exec(`INSERT INTO {outbox} (message_id, topic, ordering_key, slot, payload, metadata) VALUES
			('a', 't', 'k', 1, '', '{}'), ('b', 't', 'k', 1, '', '{}'), ('c', 't', 'l', 1, '', '{}'),
			('d', 't', 'm', 1, '', '{}'), ('e', 't', '', 1, '', '{}')`)
		exec(`INSERT INTO {blocked_keys} (ordering_key, position, successors_after, reason) VALUES ('nobody', 77, 77, 'refused')`)
		exec(`DELETE FROM {slots} WHERE slot = 9`) // somebody has deleted it; the first lease writes it again
		row := func(position int64, id, key string) *dispatch.Message {
			return &dispatch.Message{Position: position, ID: id, Key: key, Slot: 1, BlocksKey: key == "k"}
		}
		charge := func(m *dispatch.Message) []dispatch.Charge {
			return []dispatch.Charge{{Message: m, Attempts: 1, Delay: time.Hour, Err: errRefused, Cause: dispatch.Refused}}
		}
		for _, o := range []struct {
			name string
			do   func(s *store) error
		}{
			{"take slots for the first time", func(s *store) error {
				_, err := s.lease(t.Context(), leaseRequest{take: true, length: time.Hour})
				return err
			}},
			{"renew slots", func(s *store) error {
				_, err := s.lease(t.Context(), leaseRequest{kept: []int64{1}, back: []int64{2}, length: time.Hour})
				return err
			}},
			{"read", func(s *store) error {
				_, err := s.rows(t.Context(), &dispatch.Read{Slots: []int64{1}, Limit: 10, Bytes: 1000})
				return err
			}},
			{"refill", func(s *store) error {
				_, err := s.rows(t.Context(), &dispatch.Read{Refill: true, Slots: []int64{1}, Keys: []string{"k"}, Limit: 10, Bytes: 1000})
				return err
			}},
			{"unblock keys of nobody", func(s *store) error { return s.tidy(t.Context()) }},
			{"unblock keys and read", func(s *store) error {
				_, err := s.rows(t.Context(), &dispatch.Read{Tidy: true, Slots: []int64{1}, Limit: 10, Bytes: 1000})
				return err
			}},
			{"charge", func(s *store) error {
				_, err := s.charge(t.Context(), charge(row(1, "a", "k")))
				return err
			}},
			{"confirm", func(s *store) error {
				_, _, err := s.remove(t.Context(), []*dispatch.Message{row(1, "a", "k")})
				return err
			}},
			{"confirm and log", func(s *store) error {
				s.keepSent = true
				_, _, err := s.remove(t.Context(), []*dispatch.Message{row(2, "b", "k")})
				return err
			}},
			{"give up and block", func(s *store) error {
				_, err := s.moveDead(t.Context(), dispatch.Death{Message: row(3, "c", "l"), Err: errRefused}, BlockKey)
				return err
			}},
			{"give up and go on", func(s *store) error {
				_, err := s.moveDead(t.Context(), dispatch.Death{Message: row(4, "d", "m"), Err: errRefused}, SendSuccessors)
				return err
			}},
			{"count", func(s *store) error {
				_, err := s.boundedStats(t.Context())
				return err
			}},
			{"forget", func(s *store) error {
				_, err := s.forgetSent(t.Context(), 0, 10)
				return err
			}},
			{"leave", func(s *store) error { return s.leave(t.Context()) }},
			{"look ahead", func(s *store) error {
				if d.SQLite() {
					return s.tidy(t.Context()) // SQLite has no lookahead
				}
				found, err := s.rows(t.Context(), &dispatch.Read{
					Lookahead: true, Slots: []int64{1}, Limit: 10, Bytes: 1000, Examine: 10, PerGroup: 10,
				})
				if err == nil && len(found.rows) == 0 {
					t.Error("a lookahead has found nothing")
				}
				return err
			}},
		} {
			t.Run(o.name, func(t *testing.T) {
				kit.EachStepFails(t, db, true, func(db *sql.DB) error {
					s := newStore(db, d)
					s.owner, s.destination = "me", "here"
					return o.do(s)
				})
			})
		}
		t.Run("statistics", func(t *testing.T) {
			kit.EachStepFails(t, db, true, func(db *sql.DB) error {
				_, err := newStore(db, d).boundedStats(t.Context())
				return err
			})
		})
	})
}

// The result of settle must say exactly which parts have failed, because only these parts
// are settled again.
func TestSettleReportsThePartsThatFailed(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	d := kit.Dialect(t, config)
	for failing := int64(1); ; failing++ {
		for _, table := range []string{"once_outbox", "once_outbox_dead", "once_slots", "once_forwarders"} {
			kit.Exec(t, db, `DELETE FROM `+table)
		}
		kit.Exec(t, db, `INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) VALUES
			(1, 'a', 't', 1, '', '{}'), (2, 'b', 't', 1, '', '{}'), (3, 'c', 't', 1, '', '{}'), (4, 'd', 't', 1, '', '{}')`)
		pool, failed := kit.FailingStep(db, failing)
		s := newStore(db.DB, d)
		kit.OK(t, kit.Err(s.lease(t.Context(), leaseRequest{take: true, length: time.Hour})))
		s.db = pool
		row := func(position int64, id string) *dispatch.Message {
			return &dispatch.Message{Position: position, ID: id, Slot: 1}
		}
		got := s.settle(t.Context(), &dispatch.Settlement{
			Confirmed: []*dispatch.Message{row(1, "a")},
			Charges:   []dispatch.Charge{{Message: row(2, "b"), Attempts: 1, Err: errRefused}},
			Deaths:    []dispatch.Death{{Message: row(3, "c"), Err: errRefused}, {Message: row(4, "d"), Err: errRefused}},
		}, sendSuccessors)
		kit.OK(t, pool.Close())
		count := func(query string) (n int) {
			kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+query).Scan(&n))
			return n
		}
		what := failed()
		if want := count(`once_outbox WHERE message_id = 'a'`) == 0; got.Confirmed != want {
			t.Fatalf("%s: got.Confirmed is %v, want %v", what, got.Confirmed, want)
		}
		if want := count(`once_outbox WHERE message_id = 'b' AND attempts = 1`) == 1; got.Charges != want {
			t.Fatalf("%s: got.Charges is %v, want %v", what, got.Charges, want)
		}
		if want := count(`once_outbox_dead`); got.Deaths != want {
			t.Fatalf("%s: got.Deaths is %d, want %d", what, got.Deaths, want)
		}
		if what == "" {
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if got.Vanished {
				t.Fatal("got.Vanished is true")
			}
			if !got.Wrote {
				t.Fatal("got.Wrote is false")
			}
			return
		}
		if !errors.Is(got.Err, kit.ErrInjected) {
			t.Fatalf("got %v, want ErrInjected", got.Err)
		}
	}
}

// Trap 117. A settlement fails if the database ignores one of its changes without an
// error.
func TestTrap117_IgnoredChangeIsAnError(t *testing.T) {
	t.Parallel()
	row := func() *dispatch.Message { return &dispatch.Message{Position: 1, ID: "a", Topic: "t", Key: "k"} }
	charge := func() *dispatch.Settlement {
		return &dispatch.Settlement{Charges: []dispatch.Charge{{Message: row(), Attempts: 1, Err: errRefused, Cause: dispatch.Refused}}}
	}
	death := func() *dispatch.Settlement {
		return &dispatch.Settlement{Deaths: []dispatch.Death{{Message: row(), Err: errRefused}}}
	}
	confirm := func() *dispatch.Settlement {
		head := row()
		head.BlocksKey = true
		return &dispatch.Settlement{Confirmed: []*dispatch.Message{head}}
	}
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, exec := ownerOfAll(t, db)
		for _, c := range []struct {
			ignored, table string
			settlement     func() *dispatch.Settlement
		}{
			{"UPDATE", "outbox", charge},
			{"INSERT", "blocked_keys", charge},
			{"INSERT", "outbox_dead", death},
			{"DELETE", "outbox", death},
			{"INSERT", "blocked_keys", death},
			{"DELETE", "blocked_keys", confirm},
			{"INSERT", "outbox_sent", confirm},
		} {
			for _, table := range []string{"outbox", "outbox_dead", "blocked_keys", "outbox_sent"} {
				exec(`DELETE FROM once_` + table)
			}
			exec(`INSERT INTO once_outbox (position, message_id, topic, slot, ordering_key, payload, metadata)
				VALUES (1, 'a', 't', 0, 'k', '', '{}')`)
			if s.keepSent = c.table == "outbox_sent"; c.table == "blocked_keys" && c.ignored == "DELETE" {
				exec(`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('k', 1, 1, 'refused')`)
			}
			allow := kit.Ignore(t, db.DB, db.Dialect, c.ignored, "once_"+c.table, "1 = 1")
			got := s.settle(t.Context(), c.settlement(), func(string) AfterDead { return BlockKey })
			allow()
			if !errors.Is(got.Err, dialect.ErrUnchanged) || got.Confirmed || got.Charges || got.Deaths > 0 {
				t.Errorf("%s of %s is ignored: %+v, want ErrUnchanged", c.ignored, c.table, got)
			}
			if again := s.settle(t.Context(), c.settlement(), func(string) AfterDead { return BlockKey }); again.Err != nil || again.Vanished {
				t.Errorf("%s of %s is possible again: %+v", c.ignored, c.table, again)
			}
		}
	})
}
