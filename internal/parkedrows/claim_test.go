package parkedrows_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

// If no handler may run the message of a row, Claim returns the reason: the error with
// which the transport could not decode the message, or an error that the envelope is
// damaged.
func TestClaimSaysWhyAMessageCannotRun(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
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
		_, err := s.Quarantine(t.Context(), &parkedrows.Delivery{Consumer: "c", Claim: claimed[1].Claim}, nil,
			parkedrows.Failure{Err: claimed[1].Err, Reason: "undecodable"}, nil)
		if row := rows.Parked(t, s)[1]; err != nil || row.Error != "no JSON" || row.ErrorType != "*T" {
			t.Errorf("the row is %+v, %v", row, err)
		}
	})
}

// A claim takes only rows that are due, also if the same tenant has a due row of the same
// class. A row whose lease has not ended is not due.
func TestClaimTakesOnlyDueRows(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
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
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
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
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		large := message.NewMessage("large", make([]byte, 1000))
		deliver(t, s, "small")
		kit.OK(t, s.Deliver(t.Context(), "t", []string{"c"}, large))
		size := len(parkedrows.Encode(large))
		sel := selection
		sel.Limit, sel.Bytes, sel.Turns = 2, 2*size-1, &parkedrows.TenantTurns{}
		before := *sel.Turns
		var tooLarge *parkedrows.LargeError
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		deliver(t, s, "applied", "open", "another")
		for _, c := range []struct{ consumer, id, body string }{
			{"c", "applied", ""}, {"c", "another", "other content"}, {"d", "another", ""}, {"d", "open", ""},
		} {
			kit.OK(t, s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				entered, err := s.Tombstone(t.Context(), tx, c.consumer, c.id, parkedrows.Encode(message.NewMessage(c.id, []byte(c.body))))
				if !entered {
					t.Errorf("%s was in the inbox of %s", c.id, c.consumer)
				}
				return err
			}))
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newStore(t, db)
		kit.OK(t, s.Dialect().Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			for _, c := range []struct {
				id       string
				envelope []byte
				entered  bool
				rows     int
			}{
				{"m", parkedrows.Encode(message.NewMessage("m", nil)), true, 1},
				{"m", parkedrows.Encode(message.NewMessage("m", nil)), false, 1}, // the inbox contains it
				{"", parkedrows.Encode(message.NewMessage("", nil)), true, 1},
				{"cleaned", parkedrows.Encode(message.NewMessage("cle\x00aned", nil)), true, 1},
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
		}))
	})
}

// Extend sends no statement to the database if there are no claims, or if all claims
// are settled.
func TestSettledClaimsAreNotRenewed(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	s := newStore(t, db)
	deliver(t, s, "m")
	c := claim(t, s, selection)[0].Claim
	kit.OK(t, s.Release(t.Context(), c, 0))
	kit.OK(t, db.Close())
	for _, claims := range [][]*parkedrows.Claim{nil, {c}} {
		if err := s.Extend(t.Context(), time.Hour, claims); err != nil {
			t.Errorf("%d claims: %v", len(claims), err)
		}
	}
}

// If the function that selects the rows fails, ReplaceHeads returns its error and
// changes nothing.
func TestReplaceHeadsReturnsTheErrorOfItsRows(t *testing.T) {
	t.Parallel()
	s := newStore(t, kit.SQLite(t))
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
	b := parkedrows.NewBatch("t", parkedrows.Subscription{Consumer: "c", KeyOrder: true})
	want := 0
	for _, msg := range []*message.Message{message.NewMessage("m", []byte("body")), keyed("a1", "a"), keyed("a2", "a")} {
		b.Add(msg)
		want += len(parkedrows.Encode(msg))
	}
	if got := b.Bytes(); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// setIsolation changes the default isolation of the database.
func setIsolation(t *testing.T, db kit.Database, isolation string) {
	t.Helper()
	kit.Exec(t, db, fmt.Sprintf(`DO $$BEGIN
		EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), '%s'); END$$`, isolation))
	db.SetMaxIdleConns(0) // a new connection has the new default
}

func waitingForLocks(t *testing.T, db kit.Database) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE NOT granted AND datname = current_database()`).Scan(&n))
	return n
}

// slow creates a trigger. An update that sets the owner of a row to the given owner
// then waits until the returned function goOn is called. Meanwhile it keeps its locks.
func slow(t *testing.T, db kit.Database, owner string) (goOn func()) {
	t.Helper()
	kit.Exec(t, db, fmt.Sprintf(`
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER slowly BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (NEW.owner = '%s') EXECUTE FUNCTION slowly()`, owner))
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	kit.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return func() { _ = tx.Rollback() }
}

var isolations = []string{"read committed", "repeatable read", "serializable"}

// A claim skips rows that another process is claiming at the same time. This is true
// for each default isolation level of the database.
func TestClaimSkipsRowsClaimedMeanwhile(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, isolation := range isolations {
		t.Run(isolation, func(t *testing.T) {
			db := kit.Postgres(t)
			s := newStore(t, db)
			setIsolation(t, db, isolation)
			fill(t, db, "live", "a", 1)
			fill(t, db, "live", "b", 3) // the first statement claims two of four, another statement the third
			goOn := slow(t, db, "slow")
			slowly := selection
			slowly.Owner, slowly.Limit = "slow", 4
			var claimed []parkedrows.Claimed
			ended := make(chan error, 1)
			go func() {
				var err error
				claimed, err = s.Claim(t.Context(), slowly)
				ended <- err
			}()
			kit.Eventually(t, 20*time.Second, "a claim is under way", func() bool { return waitingForLocks(t, db) == 1 })
			if others := claim(t, s, selection); len(others) != 1 {
				t.Fatalf("%d were claimed meanwhile", len(others))
			}
			goOn()
			if err := <-ended; err != nil || len(claimed) != 3 {
				t.Fatalf("%d claimed, %v", len(claimed), err)
			}
		})
	}
}

// A row that is being settled does not prevent the renewal of other leases.
func TestExtendSkipsRowsSettledMeanwhile(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, isolation := range isolations {
		t.Run(isolation, func(t *testing.T) {
			db := kit.Postgres(t)
			s := newStore(t, db)
			setIsolation(t, db, isolation)
			deliver(t, s, "m1", "m2")
			sel := selection
			sel.Owner, sel.Limit = "slow", 1
			claims := map[int64]*parkedrows.Claim{}
			for range 2 {
				c := claim(t, s, sel)[0]
				claims[c.ID] = c.Claim
			}
			goOn := slow(t, db, "slow")
			ended := make(chan error, 1)
			var all []*parkedrows.Claim
			for _, c := range claims {
				all = append(all, c)
			}
			go func() { ended <- s.Extend(t.Context(), time.Hour, all) }()
			kit.Eventually(t, 20*time.Second, "the first is renewed", func() bool { return waitingForLocks(t, db) == 1 })
			var second int64
			kit.OK(t, unlocked(t, db, &second))
			kit.OK(t, s.Resolve(t.Context(), claims[second]))
			goOn()
			kit.OK(t, <-ended)
			if left := rows.Parked(t, s, parkedrows.Waiting); len(left) != 1 || time.Until(left[0].DueAt) < 2*selection.Lease {
				t.Fatalf("%+v", left)
			}
		})
	}
}

// unlocked finds the row that no transaction has locked.
func unlocked(t *testing.T, db kit.Database, id *int64) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(t.Context(), `SELECT id FROM once_parked FOR UPDATE SKIP LOCKED`).Scan(id)
	return errors.Join(err, tx.Rollback())
}

// If the database refuses the commit of a renewal, the caller gets the error. The
// leases count as ended in this process too, because they end in the table.
func TestLeaseEndsIfItsRenewalFails(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	deliver(t, s, "m1", "m2")
	sel := selection
	sel.Lease = time.Millisecond
	var claims []*parkedrows.Claim
	for _, c := range claim(t, s, sel) {
		claims = append(claims, c.Claim)
	}
	refuseCommits(t, s)
	kit.Eventually(t, 20*time.Second, "the leases have ended", func() bool { return !claims[0].Leased() && !claims[1].Leased() })
	if err := s.Extend(t.Context(), time.Hour, claims); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error is %v", err)
	}
	for _, c := range claims {
		if c.Leased() {
			t.Errorf("row %d counts as leased", c.ID)
		}
	}
}

// refuseCommits makes the database refuse the commit of each transaction that updates a
// row.
func refuseCommits(t *testing.T, s *parkedrows.Store) {
	t.Helper()
	exec(t, s, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON once_parked DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION refuse()`)
}

// If the database refuses the commit of a claim, no row is claimed, and the turns do not
// change.
func TestRefusedClaimClaimsNothing(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	fill(t, db, "live", "acme", 2)
	refuseCommits(t, s)
	sel := selection
	sel.Turns = &parkedrows.TenantTurns{}
	claimed, err := s.Claim(t.Context(), sel)
	if err == nil || !strings.Contains(err.Error(), "refused") || len(claimed) != 0 || *sel.Turns != (parkedrows.TenantTurns{}) {
		t.Errorf("%d rows are claimed, the turns are %+v: %v", len(claimed), *sel.Turns, err)
	}
}

// If a claimed row cannot be read, because the connection is lost or the context ends,
// Claim returns an error.
func TestClaimFailsIfARowCannotBeRead(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	deliver(t, s, "m1")
	kit.Exec(t, db, `
		ALTER TABLE once_parked DROP CONSTRAINT once_parked_rounds_check, ALTER rounds DROP DEFAULT,
			ALTER rounds TYPE text USING 'many'`)
	if claims, err := s.Claim(t.Context(), selection); err == nil {
		t.Errorf("%d rows were claimed", len(claims))
	}
}
