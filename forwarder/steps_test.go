package forwarder

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If a step of an operation fails in the database, the operation must return the error
// and change nothing: the loop repeats it.
func TestOperationWithAFailedStepChangesNothing(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		d, err := dialect.New(config)
		if err != nil {
			t.Fatal(err)
		}
		exec := func(query string, args ...any) {
			if _, err := db.ExecContext(t.Context(), d.SQL(query), args...); err != nil {
				t.Fatal(err)
			}
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
				_, err := s.remove(t.Context(), []*dispatch.Message{row(1, "a", "k")})
				return err
			}},
			{"confirm and log", func(s *store) error {
				s.keepSent = true
				_, err := s.remove(t.Context(), []*dispatch.Message{row(2, "b", "k")})
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
				testkit.EachStepFails(t, db, true, func(db *sql.DB) error {
					s := newStore(db, d)
					s.owner, s.destination = "me", "here"
					return o.do(s)
				})
			})
		}
		t.Run("statistics", func(t *testing.T) {
			testkit.EachStepFails(t, db, true, func(db *sql.DB) error {
				f := &Forwarder{store: newStore(db, d)}
				_, err := f.Stats(t.Context())
				return err
			})
		})
	})
}

// The result of settle must say exactly which parts have failed, because only these parts
// are settled again.
func TestSettleReportsThePartsThatFailed(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	d, err := dialect.New(config)
	if err != nil {
		t.Fatal(err)
	}
	for failing := int64(1); ; failing++ {
		for _, table := range []string{"once_outbox", "once_outbox_dead", "once_slots", "once_forwarders"} {
			if _, err := db.ExecContext(t.Context(), `DELETE FROM `+table); err != nil {
				t.Fatal(err)
			}
		}
		_, err := db.ExecContext(t.Context(), `INSERT INTO once_outbox (position, message_id, topic, slot, payload, metadata) VALUES
			(1, 'a', 't', 1, '', '{}'), (2, 'b', 't', 1, '', '{}'), (3, 'c', 't', 1, '', '{}'), (4, 'd', 't', 1, '', '{}')`)
		if err != nil {
			t.Fatal(err)
		}
		pool, failed := testkit.FailingStep(db, failing)
		s := newStore(db.DB, d)
		if _, err := s.lease(t.Context(), leaseRequest{take: true, length: time.Hour}); err != nil {
			t.Fatal(err)
		}
		s.db = pool
		row := func(position int64, id string) *dispatch.Message {
			return &dispatch.Message{Position: position, ID: id, Slot: 1}
		}
		got := s.settle(t.Context(), &dispatch.Settlement{
			Confirmed: []*dispatch.Message{row(1, "a")},
			Charges:   []dispatch.Charge{{Message: row(2, "b"), Attempts: 1, Err: errRefused}},
			Deaths:    []dispatch.Death{{Message: row(3, "c"), Err: errRefused}, {Message: row(4, "d"), Err: errRefused}},
		}, sendSuccessors)
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
		count := func(query string) (n int) {
			if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+query).Scan(&n); err != nil {
				t.Fatal(err)
			}
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
		if !errors.Is(got.Err, testkit.ErrInjected) {
			t.Fatalf("got %v, want ErrInjected", got.Err)
		}
	}
}
