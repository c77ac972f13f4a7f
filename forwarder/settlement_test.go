package forwarder

import (
	"errors"
	"fmt"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

var errRefused = errors.New("refused")

// ownerOfAll returns a store that owns every slot, and a function that runs statements
// on its database.
func ownerOfAll(t *testing.T, db testkit.Database) (s *store, exec func(query string, args ...any)) {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	d, err := dialect.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s = newStore(db.DB, d)
	exec = func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`UPDATE once_slots SET owner = $1`, s.owner)
	return s, exec
}

// If an attempt is recorded twice, because the outcome of the first commit was unknown,
// it must count as one attempt.
func TestAChargeThatIsMadeAgainIsOneAttempt(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
			var attempts int
			if err := db.QueryRowContext(t.Context(), `SELECT attempts FROM once_outbox WHERE message_id = $1`, id).Scan(&attempts); err != nil {
				t.Fatal(err)
			}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	db := testkit.Postgres(t)
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
