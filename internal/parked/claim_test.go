package parked_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

// If no handler may run the message of a row, Claim returns the reason: the error with
// which the transport could not decode the message, or an error that the envelope is
// damaged.
func TestClaimSaysWhyAMessageCannotRun(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "fine", "raw", "edited", "damaged", "damaged raw")
		exec(t, s, `UPDATE {parked} SET reason = 'undecodable', error = 'no JSON', error_type = '*T'
			WHERE message_id IN ('raw', 'edited', 'damaged raw')`)
		exec(t, s, `UPDATE {parked} SET edited_from = 7 WHERE message_id = 'edited'`)
		exec(t, s, `UPDATE {parked} SET envelope = '' WHERE message_id IN ('damaged', 'damaged raw')`)
		claimed := claim(t, s, selection)
		const damaged = "parked: the envelope is damaged: unknown version"
		for n, want := range []string{"", "no JSON", "", damaged, damaged} {
			got := ""
			if err := claimed[n].Err; err != nil {
				got = err.Error()
			}
			if got != want || (claimed[n].Message == nil) != (n >= 3) {
				t.Errorf("row %d: %q and %v, want %q", n, got, claimed[n].Message, want)
			}
		}
		if claimed[0].Age() < 0 || claimed[0].Age() > time.Minute || claimed[0].Waited != 0 || claimed[0].Crashes != 1 || claimed[0].Token == "" {
			t.Errorf("the claim is %+v", claimed[0].Claim)
		}
		_, err := s.Quarantine(t.Context(), &parked.Delivery{Consumer: "c", Claim: claimed[1].Claim}, nil,
			parked.Failure{Err: claimed[1].Err, Reason: "undecodable"}, nil)
		if row := rows.Parked(t, s)[1]; err != nil || row.Error != "no JSON" || row.ErrorType != "*T" {
			t.Errorf("the row is %+v, %v", row, err)
		}
	})
}

// A claim takes only rows that are due, also if the same tenant has a due row of the same
// class. A row whose lease has not ended is not due.
func TestClaimTakesOnlyDueRows(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "due", "later", "crashed", "running")
		hour := time.Hour.Milliseconds()
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id IN ('later', 'running')`, hour)
		exec(t, s, `UPDATE {parked} SET crashes = 1, owner = 'o', token = 'x' WHERE message_id IN ('crashed', 'running')`)
		for crashed, want := range map[bool]string{false: "due", true: "crashed"} {
			sel := selection
			sel.Crashed = crashed
			if claimed := claim(t, s, sel); len(claimed) != 1 || claimed[0].Message.UUID != want {
				t.Errorf("claimed %+v, want the message %q alone", claimed, want)
			}
		}
	})
}

// The times of a claim are measured by the clock of the database.
func TestClaimKnowsTheAgeOfItsRow(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "m")
		exec(t, s, `UPDATE {parked} SET created_at = {after $1}, early_since = {after $2}`,
			-2*time.Hour.Milliseconds(), -time.Hour.Milliseconds())
		c := claim(t, s, selection)[0]
		if age, waited := c.Age().Round(time.Hour), c.Waited.Round(time.Hour); age != 2*time.Hour || waited != time.Hour {
			t.Errorf("the row is %v old and has waited for %v, want 2h and 1h", c.Age(), c.Waited)
		}
	})
}

// Claim does not claim a row that is larger than its share of the byte limit. The error
// contains the size of the row. With Limit 1, Claim claims a row of any size.
func TestRowThatIsTooLargeIsClaimedAlone(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		large := message.NewMessage("large", make([]byte, 1000))
		deliver(t, s, "small")
		if err := s.Deliver(t.Context(), "t", []string{"c"}, large); err != nil {
			t.Fatal(err)
		}
		size := len(parked.Encode(large))
		sel := selection
		sel.Limit, sel.Bytes, sel.Turns = 2, 2*size-1, &parked.TenantTurns{}
		before := *sel.Turns
		var tooLarge *parked.LargeError
		if claimed, err := s.Claim(t.Context(), sel); len(claimed) != 0 || !errors.As(err, &tooLarge) || tooLarge.Size != size ||
			tooLarge.Error() != fmt.Sprintf("a message of %d bytes is too large for its share of the batch", size) {
			t.Errorf("%d claimed, %v; the message has %d bytes", len(claimed), err, size)
		}
		if *sel.Turns != before {
			t.Error("the turns have changed")
		}
		if row := rows.Parked(t, s)[0]; row.Crashes != 0 {
			t.Errorf("a row was claimed: %+v", row)
		}
		sel.Bytes++
		if claimed := claim(t, s, sel); len(claimed) != 2 || claimed[1].Size != size {
			t.Errorf("claimed %+v", claimed)
		}
	})
}

// Applied reports whether the inbox contains the message with the same content, and
// does not change the inbox.
func TestAppliedAsksTheInboxForTheContent(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "applied", "open", "another")
		for _, c := range []struct{ consumer, id, body string }{
			{"c", "applied", ""}, {"c", "another", "other content"}, {"d", "another", ""}, {"d", "open", ""},
		} {
			err := s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				entered, err := s.Tombstone(t.Context(), tx, c.consumer, c.id, parked.Encode(message.NewMessage(c.id, []byte(c.body))))
				if !entered {
					t.Errorf("%s was in the inbox of %s", c.id, c.consumer)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for n, c := range claim(t, s, selection) {
			if applied, err := s.Applied(t.Context(), c); err != nil || applied != (n == 0) {
				t.Errorf("%s: applied %t, %v", c.Message.UUID, applied, err)
			}
		}
		var n int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n); err != nil || n != 4 {
			t.Errorf("the inbox has %d rows, %v", n, err)
		}
	})
}

// Tombstone does not write an id into the inbox that the inbox would refuse. For a row
// with a damaged envelope it writes nothing and returns no error, so that the row can
// be discarded.
func TestTombstoneEntersOnlyIDsOfTheInbox(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		err := s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			for _, c := range []struct {
				id       string
				envelope []byte
				entered  bool
				rows     int
			}{
				{"m", parked.Encode(message.NewMessage("m", nil)), true, 1},
				{"m", parked.Encode(message.NewMessage("m", nil)), false, 1}, // the inbox contains it
				{"", parked.Encode(message.NewMessage("", nil)), true, 1},
				{"cleaned", parked.Encode(message.NewMessage("cle\x00aned", nil)), true, 1},
				{"damaged", nil, true, 1},
			} {
				entered, err := s.Tombstone(t.Context(), tx, "c", c.id, c.envelope)
				var n int
				if err := tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n); err != nil {
					return err
				}
				if err != nil || entered != c.entered || n != c.rows {
					t.Errorf("%q: entered %t, %v, %d rows", c.id, entered, err, n)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// Extend sends no statement to the database if there are no claims, or if all claims
// are settled.
func TestSettledClaimsAreNotRenewed(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	s := newStore(t, db)
	deliver(t, s, "m")
	c := claim(t, s, selection)[0].Claim
	if err := s.Release(t.Context(), c, 0); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, claims := range [][]*parked.Claim{nil, {c}} {
		if err := s.Extend(t.Context(), time.Hour, claims); err != nil {
			t.Errorf("%d claims: %v", len(claims), err)
		}
	}
}

// If the function that selects the rows fails, ReplaceHeads returns its error and
// changes nothing.
func TestReplaceHeadsReturnsTheErrorOfItsRows(t *testing.T) {
	t.Parallel()
	s := newStore(t, testkit.SQLite(t))
	err := s.ReplaceHeads(t.Context(), func(*sql.Tx) ([]int64, error) { return nil, errHandler }, func(*sql.Tx) error {
		t.Error("work was called")
		return nil
	})
	if !errors.Is(err, errHandler) {
		t.Errorf("got %v", err)
	}
}

func TestBatchHasTheSizeOfItsEnvelopes(t *testing.T) {
	t.Parallel()
	b := parked.NewBatch("t", parked.Subscription{Consumer: "c", KeyOrder: true})
	want := 0
	for _, msg := range []*message.Message{message.NewMessage("m", []byte("body")), keyed("a1", "a"), keyed("a2", "a")} {
		b.Add(msg)
		want += len(parked.Encode(msg))
	}
	if got := b.Bytes(); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
