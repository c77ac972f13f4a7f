package parkedrows_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

var errHandler = errors.New("handler failed")

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, s *parkedrows.Store)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newStore(t, db)) })
}

func newStore(t *testing.T, db kit.Database) *parkedrows.Store {
	t.Helper()
	config := kit.Tables(t, db)
	store, err := parkedrows.NewStore(db.DB, config)
	kit.OK(t, err)
	return store
}

var selection = parkedrows.Select{Consumer: "c", Topic: "t", Owner: "me", Limit: 100, Lease: time.Minute}

func deliver(t *testing.T, s *parkedrows.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage(id, nil)))
	}
}

func claim(t *testing.T, s *parkedrows.Store, sel parkedrows.Select) []parkedrows.Claimed {
	t.Helper()
	claimed, err := s.Claim(t.Context(), sel)
	kit.OK(t, err)
	return claimed
}

func TestEachRowIsClaimedOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		const rows = 50
		for n := range rows {
			deliver(t, s, fmt.Sprint(n))
		}
		var mu sync.Mutex
		seen := map[int64]int{}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for {
					sel := selection
					sel.Limit = 3
					claimed, err := s.Claim(t.Context(), sel)
					if err != nil {
						t.Error(err)
						return
					}
					if len(claimed) == 0 {
						return
					}
					mu.Lock()
					for _, c := range claimed {
						seen[c.ID]++
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for id, times := range seen {
			if times != 1 {
				t.Errorf("row %d was claimed %d times", id, times)
			}
		}
		if len(seen) != rows {
			t.Errorf("%d rows claimed, want %d", len(seen), rows)
		}
	})
}

// A claim that was lost cannot change the row.
func TestLostClaimChangesNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		deliver(t, s, "m1")
		sel := selection
		sel.Lease = time.Millisecond
		old := claim(t, s, sel)[0]
		sel = selection
		sel.Crashed = true
		var current []parkedrows.Claimed
		kit.Eventually(t, 30*time.Second, "the lease is over", func() bool {
			current = claim(t, s, sel)
			return len(current) == 1
		})
		failure := parkedrows.Failure{Err: errHandler, Reason: "exhausted", Attempts: 9}
		_, quarantined := s.Quarantine(t.Context(), &parkedrows.Delivery{Consumer: "c", Claim: old.Claim}, nil, failure, nil)
		for name, err := range map[string]error{
			"resolve":    s.Resolve(t.Context(), old.Claim),
			"postpone":   s.Postpone(t.Context(), "c", old.Claim, failure, 0),
			"release":    s.Release(t.Context(), old.Claim, 0),
			"replayed":   s.Resolve(t.Context(), &parkedrows.Claim{ID: old.ID, Token: old.Token, Replays: 1}),
			"quarantine": quarantined,
		} {
			if !errors.Is(err, parkedrows.ErrClaimLost) {
				t.Errorf("%s: %v, want ErrClaimLost", name, err)
			}
		}
		kit.OK(t, s.Extend(t.Context(), time.Hour, []*parkedrows.Claim{{ID: old.ID, Token: old.Token}}))
		if old.Leased() || !current[0].Leased() {
			t.Errorf("the first claim is held: %t, the second: %t", old.Leased(), current[0].Leased())
		}
		row := rows.Parked(t, s)[0]
		if row.State != parkedrows.Waiting || row.Attempts != 0 || row.DueAt.After(time.Now().Add(2*time.Minute)) {
			t.Fatalf("row %+v", row)
		}
		kit.OK(t, s.Resolve(t.Context(), current[0].Claim))
	})
}

// A process can renew a lease even after its end, as long as no other process has
// claimed the row. The new lease begins at the time at which the process asked for the
// renewal.
func TestRenewedLeaseContinues(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		deliver(t, s, "a", "b")
		sel := selection
		sel.Lease = 100 * time.Millisecond
		claims := claim(t, s, sel)
		a, b := claims[0].Claim, claims[1].Claim
		ended := func() {
			t.Helper()
			kit.Eventually(t, 30*time.Second, "the leases are over", func() bool { return !a.Leased() && !b.Leased() })
		}
		ended()
		if err := s.Extend(t.Context(), time.Minute, []*parkedrows.Claim{a}); err != nil || !a.Leased() || b.Leased() {
			t.Fatalf("%v; held: %t and %t, though the first is renewed", err, a.Leased(), b.Leased())
		}
		kit.OK(t, s.Extend(t.Context(), time.Millisecond, []*parkedrows.Claim{a, b}))
		ended()
		sel = selection
		sel.Crashed, sel.Limit = true, 2
		var anew []*parkedrows.Claim
		kit.Eventually(t, 30*time.Second, "they are claimed anew", func() bool {
			for _, c := range claim(t, s, sel) {
				anew = append(anew, c.Claim)
			}
			return len(anew) == 2
		})
		for _, all := range [][]*parkedrows.Claim{{a, b}, {anew[0], anew[1], a, b}} { // the new claims may belong to the same process
			if err := s.Extend(t.Context(), time.Hour, all); err != nil || a.Leased() || b.Leased() {
				t.Fatalf("%v; held: %t and %t, though others have them", err, a.Leased(), b.Leased())
			}
		}
	})
}

// A count from a header of the broker can be higher than the column can store. In this
// case Quarantine stores MaxCount.
func TestQuarantineStoresAtMostMaxCountAttempts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		f := parkedrows.Failure{Err: errors.New("no"), Attempts: parkedrows.MaxCount + 1}
		kit.OK(t, kit.Err(s.Quarantine(t.Context(), d, message.NewMessage("m", nil), f, nil)))
		if n := rows.Parked(t, s)[0].Attempts; n != parkedrows.MaxCount {
			t.Errorf("%d attempts are stored", n)
		}
	})
}

// In SQLite, a row can contain a count above MaxCount, if somebody edits it by hand.
// Adding one to this count must not overflow.
func TestClaimReturnsAtMostMaxCountAttempts(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	s := newStore(t, db)
	kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage("m", nil)))
	kit.OK(t, kit.Err(db.Exec(`UPDATE once_parked SET attempts = 9223372036854775807, rounds = 9223372036854775807`)))
	claimed := claim(t, s, parkedrows.Select{Consumer: "c", Topic: "t", Owner: "o", Limit: 1, Lease: time.Minute})
	if len(claimed) != 1 || claimed[0].Attempts != parkedrows.MaxCount || claimed[0].Rounds != parkedrows.MaxCount {
		t.Errorf("claimed with other counts: %+v", claimed)
	}
}

func TestFailuresOfOneCauseHaveOneFingerprint(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		for id, text := range map[string]string{
			"a": `order 17 ("x-1") of 550e8400-e29b-41d4-a716-446655440000 has no stock`,
			"b": `order 4711 ("y-22") of 6ba7b810-9dad-11d1-80b4-00c04fd430c8 has no stock`,
			"c": `the payment was refused`,
		} {
			kit.OK(t, kit.Err(s.Quarantine(t.Context(), d, message.NewMessage(id, nil), parkedrows.Failure{Err: errors.New(text)}, nil)))
		}
		prints := map[string]string{}
		for _, e := range rows.Parked(t, s) {
			prints[e.MessageID] = e.Fingerprint
		}
		if prints["a"] != prints["b"] || prints["a"] == prints["c"] || prints["a"] == "" {
			t.Fatalf("fingerprints %v", prints)
		}
	})
}

// Handled reports whether the inbox contains the message of a row, and does not change
// the inbox.
func TestHandledAsksTheInbox(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		deliver(t, s, "done", "open")
		enter := s.Dialect().SQL(`INSERT INTO {inbox} (message_id, consumer, digest) VALUES ('done', 'c', '')`)
		kit.Exec(t, db, enter)
		for _, row := range rows.Parked(t, s) {
			kit.OK(t, s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				handled, err := s.Handled(t.Context(), tx, row.ID)
				if want := row.MessageID == "done"; err == nil && handled != want {
					t.Errorf("%s: handled is %t", row.MessageID, handled)
				}
				return err
			}))
		}
		var n int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n); err != nil || n != 1 {
			t.Errorf("the inbox has %d rows, %v", n, err)
		}
	})
}

// Trap 117. If the database ignores the change of a row without an error, the step
// fails, and can be repeated. A message without a row is not acked, and a row that stays
// is no lost claim.
func TestTrap117_IgnoredChangeIsAnError(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s, ctx := newStore(t, db), t.Context()
		failure := parkedrows.Failure{MessageID: "stays", Err: errors.New("boom"), Reason: "exhausted", Attempts: 1}
		turn := chain.Turn{AggregateType: "a", AggregateID: "1", Sequence: "s", Version: 2}
		to := func(c *parkedrows.Claim) *parkedrows.Delivery {
			return &parkedrows.Delivery{Consumer: "c", Topic: "t", Claim: c}
		}
		msg := message.NewMessage("stays", nil)
		quarantine := func(claims []*parkedrows.Claim) error {
			_, err := s.Quarantine(ctx, to(claims[0]), msg, failure, nil)
			return err
		}
		early := func(claims []*parkedrows.Claim) error { return s.ParkEarly(ctx, to(claims[0]), msg, turn, time.Minute) }
		for name, c := range map[string]struct {
			ignored string
			claims  int
			step    func(claims []*parkedrows.Claim) error
		}{
			"resolve": {"DELETE parked", 2, func(claims []*parkedrows.Claim) error { return s.Resolve(ctx, claims...) }},
			"keep": {"UPDATE parked", 2, func(claims []*parkedrows.Claim) error {
				claims[0].Keep = true
				return s.Resolve(ctx, claims...)
			}},
			"release": {"UPDATE parked", 2, func(claims []*parkedrows.Claim) error { return s.HandBack(ctx, claims) }},
			"postpone": {"UPDATE parked", 1, func(claims []*parkedrows.Claim) error {
				return s.Postpone(ctx, "c", claims[0], failure, time.Minute)
			}},
			"an early row whose placeholder stays": {"DELETE versions", 1, early},
			"quarantine a row":                     {"UPDATE parked", 1, quarantine},
			"an early row":                         {"UPDATE parked", 1, early},
			"quarantine":                           {"INSERT parked", 0, quarantine},
			"early":                                {"INSERT parked", 0, early},
			"park": {"INSERT parked", 0, func([]*parkedrows.Claim) error {
				return s.Park(ctx, to(nil), msg, failure, time.Minute)
			}},
			"receive": {"INSERT parked", 0, func([]*parkedrows.Claim) error {
				return s.Deliver(ctx, "t", []string{"c"}, message.NewMessage("fine", nil), msg)
			}},
		} {
			exec(t, s, `DELETE FROM {parked}`)
			claims := []*parkedrows.Claim{nil}
			if c.claims > 0 {
				deliver(t, s, []string{"stays", "fine"}[:c.claims]...)
				claims = claims[:0]
				for _, one := range claim(t, s, selection) {
					claims = append(claims, one.Claim)
				}
			}
			operation, table, _ := strings.Cut(c.ignored, " ")
			row := "OLD"
			if operation == "INSERT" {
				row = "NEW"
			}
			when := row + ".message_id = 'stays'"
			if table == "versions" {
				when = "1 = 1"
			}
			allow := kit.Ignore(t, db.DB, db.Dialect, operation, "once_"+table, when)
			if err := c.step(claims); !errors.Is(err, dialect.ErrUnchanged) || errors.Is(err, parkedrows.ErrClaimLost) {
				t.Errorf("%s, ignored: %v, want ErrUnchanged", name, err)
			}
			if c.claims > 0 && claims[0].Settled() || c.claims == 2 && !claims[1].Settled() {
				t.Errorf("%s: settled is %v, want only the other row to be settled", name, claims[0].Settled())
			}
			allow()
			if err := c.step(claims); err != nil {
				t.Errorf("%s, not ignored: %v", name, err)
			}
		}
	})
}

// Trap 117. If the database does not let the next message of a key run, and reports no
// error, the repair of the key fails.
func TestTrap117_KeyThatStaysBlockedIsAnError(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		for _, key := range []string{"a", "b"} {
			kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed(key+"1", key), keyed(key+"2", key)))
		}
		exec(t, s, `DELETE FROM {parked} WHERE message_id IN ('a1', 'b1')`)
		allow := kit.Ignore(t, db.DB, db.Dialect, "UPDATE", "once_parked", "OLD.message_id = 'b2'")
		repair := func() (int, error) { return s.RepairKeys(t.Context(), "c", "t", parkedrows.BlockWhileRetried) }
		if n, err := repair(); n != 2 || !errors.Is(err, dialect.ErrUnchanged) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("%d keys are repaired, %v; want ErrUnchanged for b", n, err)
		}
		allow()
		if n, err := repair(); n != 1 || err != nil {
			t.Errorf("%d keys are repaired, %v; want 1", n, err)
		}
	})
}

// Trap 117. An id that the inbox can neither store nor delete makes nobody believe that
// the message was handled.
func TestTrap117_IgnoredChangeOfTheInboxIsAnError(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		deliver(t, s, "m")
		id := claim(t, s, selection)[0].ID
		handled := func() (handled bool, err error) {
			err = s.Dialect().Write(t.Context(), s.DB(), func(tx *sql.Tx) error {
				handled, err = s.Handled(t.Context(), tx, id)
				return err
			})
			return handled, err
		}
		for _, operation := range []string{"INSERT", "DELETE"} {
			allow := kit.Ignore(t, db.DB, db.Dialect, operation, "once_inbox", "1 = 1")
			if got, err := handled(); !errors.Is(err, dialect.ErrUnchanged) {
				t.Errorf("%s is ignored: %v and %v, want ErrUnchanged", operation, got, err)
			}
			allow()
		}
		if got, err := handled(); got || err != nil {
			t.Errorf("handled is %v and %v, want false", got, err)
		}
	})
}

// Every statement that inserts into the table fills the columns by which a message can
// be found.
func TestEveryInsertStoresTheLabels(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		s, err := parkedrows.NewStore(db.DB, config)
		kit.OK(t, err)
		labelled := func(id string) *message.Message {
			msg := message.NewMessage(id, []byte("body"))
			msg.Metadata = message.Metadata{
				"once_ordering_key": "k", "once_tenant_id": "acme", "once_aggregate_type": "it's \"one\"", "once_aggregate_id": id + "\x00",
				"once_event_type": strings.Repeat("ü", 200), "once_causation_id": "cause",
			}
			return msg
		}
		d := &parkedrows.Delivery{Consumer: "c", Topic: "t"}
		failure := parkedrows.Failure{Err: errors.New("no"), Reason: "exhausted", Attempts: 1}
		ways := map[string]func(msg *message.Message) error{
			"park":    func(msg *message.Message) error { return s.Park(t.Context(), d, msg, failure, time.Hour) },
			"deliver": func(msg *message.Message) error { return s.Deliver(t.Context(), "t", []string{"c"}, msg) },
			"in order": func(msg *message.Message) error {
				return s.DeliverTo(t.Context(), "t", []parkedrows.Subscription{{Consumer: "c", KeyOrder: true}}, msg)
			},
			"quarantine": func(msg *message.Message) error {
				_, err := s.Quarantine(t.Context(), d, msg, failure, nil)
				return err
			},
			"early": func(msg *message.Message) error {
				return s.ParkEarly(t.Context(), d, msg, chain.Turn{Sequence: "s", AggregateType: "a", AggregateID: "7", Version: 3}, time.Hour)
			},
		}
		for name, store := range ways {
			if err := store(labelled(name)); err != nil {
				t.Fatal(name, err)
			}
			bare := message.NewMessage("bare "+name, nil)
			if err := store(bare); err != nil {
				t.Fatal(name, err)
			}
		}
		for name := range ways {
			for id, want := range map[string]string{
				name:           "acme|it's \"one\"|" + name + "\uFFFD|" + strings.Repeat("ü", 127) + "|cause",
				"bare " + name: "||||",
			} {
				var got string
				err := db.QueryRowContext(t.Context(), `SELECT tenant || '|' || aggregate_type || '|' || aggregate_id || '|' || event_type || '|' ||
					causation_id FROM once_parked WHERE message_id = $1`, id).Scan(&got)
				if err != nil || got != want {
					t.Errorf("%s: %q, want %q: %v", id, got, want, err)
				}
			}
		}
	})
}
