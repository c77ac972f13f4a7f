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

// A row whose message no handler may run says why: with the error of its transport, or
// because its envelope is damaged.
func TestClaimSaysWhyAMessageCannotRun(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "fine", "raw", "edited", "damaged")
		exec(t, s, `UPDATE {parked} SET reason = 'undecodable', error = 'no JSON', error_type = '*T' WHERE message_id IN ('raw', 'edited')`)
		exec(t, s, `UPDATE {parked} SET edited_from = 7 WHERE message_id = 'edited'`)
		exec(t, s, `UPDATE {parked} SET envelope = '' WHERE message_id = 'damaged'`)
		claimed := claim(t, s, selection)
		for n, want := range []string{"", "no JSON", "", "parked: the envelope is damaged: unknown version"} {
			got := ""
			if err := claimed[n].Err; err != nil {
				got = err.Error()
			}
			if got != want || (claimed[n].Message == nil) != (n == 3) {
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

// A row that is too large for its part of the bytes is not claimed, and the error says
// how large it is. Alone it is claimed.
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

// Applied reports whether the inbox has the message with this content, and leaves the
// inbox as it is.
func TestAppliedAsksTheInboxForTheContent(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		deliver(t, s, "applied", "open", "another")
		for id, body := range map[string]string{"applied": "", "another": "other content"} {
			err := s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				entered, err := s.Tombstone(t.Context(), tx, "c", id, parked.Encode(message.NewMessage(id, []byte(body))))
				if !entered {
					t.Errorf("%s was in the inbox", id)
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
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_inbox`).Scan(&n); err != nil || n != 2 {
			t.Errorf("the inbox has %d rows, %v", n, err)
		}
	})
}

// An id that the inbox would refuse is not entered. A damaged row can be discarded, too.
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
				{"m", parked.Encode(message.NewMessage("m", nil)), false, 1}, // it is there
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

// Without claims, or with settled ones only, there is nothing to renew, and the database
// is not asked.
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

// The error of the caller's query ends the transaction.
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
