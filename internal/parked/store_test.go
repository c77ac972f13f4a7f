package parked_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
	"github.com/watermill-once/once/schema"
)

var errHandler = errors.New("handler failed")

func newStore(t *testing.T, db testkit.Database) *parked.Store {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	store, err := parked.NewStore(db.DB, config)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

var selection = parked.Select{Consumer: "c", Topic: "t", Owner: "me", Limit: 100, Lease: time.Minute}

func deliver(t *testing.T, s *parked.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage(id, nil)); err != nil {
			t.Fatal(err)
		}
	}
}

func claim(t *testing.T, s *parked.Store, sel parked.Select) []parked.Claimed {
	t.Helper()
	claimed, err := s.Claim(t.Context(), sel)
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

func TestEachRowIsClaimedOnce(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "m1")
		sel := selection
		sel.Lease = time.Millisecond
		old := claim(t, s, sel)[0]
		sel = selection
		sel.Crashed = true
		var current []parked.Claimed
		testkit.Eventually(t, 30*time.Second, "the lease is over", func() bool {
			current = claim(t, s, sel)
			return len(current) == 1
		})
		failure := parked.Failure{Err: errHandler, Reason: "exhausted", Attempts: 9}
		_, quarantined := s.Quarantine(t.Context(), &parked.Delivery{Consumer: "c", Claim: old.Claim}, nil, failure, nil)
		for name, err := range map[string]error{
			"resolve":    s.Resolve(t.Context(), old.Claim),
			"postpone":   s.Postpone(t.Context(), "c", old.Claim, failure, 0),
			"release":    s.Release(t.Context(), old.Claim, 0),
			"replayed":   s.Resolve(t.Context(), &parked.Claim{ID: old.ID, Token: old.Token, Replays: 1}),
			"quarantine": quarantined,
		} {
			if !errors.Is(err, parked.ErrClaimLost) {
				t.Errorf("%s: %v, want ErrClaimLost", name, err)
			}
		}
		if err := s.Extend(t.Context(), time.Hour, []*parked.Claim{{ID: old.ID, Token: old.Token}}); err != nil {
			t.Fatal(err)
		}
		if old.Leased() || !current[0].Leased() {
			t.Errorf("the first claim is held: %t, the second: %t", old.Leased(), current[0].Leased())
		}
		row := rows.Parked(t, s)[0]
		if row.State != parked.Waiting || row.Attempts != 0 || row.DueAt.After(time.Now().Add(2*time.Minute)) {
			t.Fatalf("row %+v", row)
		}
		if err := s.Resolve(t.Context(), current[0].Claim); err != nil {
			t.Fatal(err)
		}
	})
}

// A process can renew a lease even after its end, as long as no other process has
// claimed the row. The new lease begins at the time at which the process asked for the
// renewal.
func TestRenewedLeaseContinues(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "a", "b")
		sel := selection
		sel.Lease = 100 * time.Millisecond
		claims := claim(t, s, sel)
		a, b := claims[0].Claim, claims[1].Claim
		ended := func() {
			t.Helper()
			testkit.Eventually(t, 30*time.Second, "the leases are over", func() bool { return !a.Leased() && !b.Leased() })
		}
		ended()
		if err := s.Extend(t.Context(), time.Minute, []*parked.Claim{a}); err != nil || !a.Leased() || b.Leased() {
			t.Fatalf("%v; held: %t and %t, though the first is renewed", err, a.Leased(), b.Leased())
		}
		if err := s.Extend(t.Context(), time.Millisecond, []*parked.Claim{a, b}); err != nil {
			t.Fatal(err)
		}
		ended()
		sel = selection
		sel.Crashed, sel.Limit = true, 2
		var anew []*parked.Claim
		testkit.Eventually(t, 30*time.Second, "they are claimed anew", func() bool {
			for _, c := range claim(t, s, sel) {
				anew = append(anew, c.Claim)
			}
			return len(anew) == 2
		})
		for _, all := range [][]*parked.Claim{{a, b}, {anew[0], anew[1], a, b}} { // the new claims may belong to the same process
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		d := &parked.Delivery{Consumer: "c", Topic: "t"}
		f := parked.Failure{Err: errors.New("no"), Attempts: parked.MaxCount + 1}
		if _, err := s.Quarantine(t.Context(), d, message.NewMessage("m", nil), f, nil); err != nil {
			t.Fatal(err)
		}
		if n := rows.Parked(t, s)[0].Attempts; n != parked.MaxCount {
			t.Errorf("%d attempts are stored", n)
		}
	})
}

// In SQLite, a row can contain a count above MaxCount, if somebody edits it by hand.
// Adding one to this count must not overflow.
func TestClaimReturnsAtMostMaxCountAttempts(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	s := newStore(t, db)
	if err := s.Deliver(t.Context(), "t", []string{"c"}, message.NewMessage("m", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`UPDATE once_parked SET attempts = 9223372036854775807, rounds = 9223372036854775807`); err != nil {
		t.Fatal(err)
	}
	claimed := claim(t, s, parked.Select{Consumer: "c", Topic: "t", Owner: "o", Limit: 1, Lease: time.Minute})
	if len(claimed) != 1 || claimed[0].Attempts != parked.MaxCount || claimed[0].Rounds != parked.MaxCount {
		t.Errorf("claimed with other counts: %+v", claimed)
	}
}

func TestFailuresOfOneCauseHaveOneFingerprint(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		d := &parked.Delivery{Consumer: "c", Topic: "t"}
		for id, text := range map[string]string{
			"a": `order 17 ("x-1") of 550e8400-e29b-41d4-a716-446655440000 has no stock`,
			"b": `order 4711 ("y-22") of 6ba7b810-9dad-11d1-80b4-00c04fd430c8 has no stock`,
			"c": `the payment was refused`,
		} {
			if _, err := s.Quarantine(t.Context(), d, message.NewMessage(id, nil), parked.Failure{Err: errors.New(text)}, nil); err != nil {
				t.Fatal(err)
			}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "done", "open")
		enter := s.Dialect().SQL(`INSERT INTO {inbox} (message_id, consumer, digest) VALUES ('done', 'c', '')`)
		if _, err := db.ExecContext(t.Context(), enter); err != nil {
			t.Fatal(err)
		}
		for _, row := range rows.Parked(t, s) {
			err := s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				handled, err := s.Handled(t.Context(), tx, row.ID)
				if want := row.MessageID == "done"; err == nil && handled != want {
					t.Errorf("%s: handled is %t", row.MessageID, handled)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		var n int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n); err != nil || n != 1 {
			t.Errorf("the inbox has %d rows, %v", n, err)
		}
	})
}
