package parked_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/testkit/rows"
)

// setIsolation changes the default isolation of the database.
func setIsolation(t *testing.T, db testkit.Database, isolation string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(`DO $$BEGIN
		EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), '%s'); END$$`, isolation))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(0) // a new connection has the new default
}

func waitingForLocks(t *testing.T, db testkit.Database) (n int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE NOT granted AND datname = current_database()`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// slow creates a trigger. An update that sets the owner of a row to the given owner
// then waits until the returned function goOn is called. Meanwhile it keeps its locks.
func slow(t *testing.T, db testkit.Database, owner string) (goOn func()) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), fmt.Sprintf(`
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER slowly BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (NEW.owner = '%s') EXECUTE FUNCTION slowly()`, owner))
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return func() { _ = tx.Rollback() }
}

var isolations = []string{"read committed", "repeatable read", "serializable"}

// A claim skips rows that another process is claiming at the same time. This is true
// for each default isolation level of the database.
func TestClaimSkipsRowsClaimedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, isolation := range isolations {
		t.Run(isolation, func(t *testing.T) {
			db := testkit.Postgres(t)
			s := newStore(t, db)
			setIsolation(t, db, isolation)
			fill(t, db, "live", "a", 1)
			fill(t, db, "live", "b", 3) // the first statement claims two of four, another statement the third
			goOn := slow(t, db, "slow")
			slowly := selection
			slowly.Owner, slowly.Limit = "slow", 4
			var claimed []parked.Claimed
			ended := make(chan error, 1)
			go func() {
				var err error
				claimed, err = s.Claim(t.Context(), slowly)
				ended <- err
			}()
			testkit.Eventually(t, 20*time.Second, "a claim is under way", func() bool { return waitingForLocks(t, db) == 1 })
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
	t.Parallel()
	for _, isolation := range isolations {
		t.Run(isolation, func(t *testing.T) {
			db := testkit.Postgres(t)
			s := newStore(t, db)
			setIsolation(t, db, isolation)
			deliver(t, s, "m1", "m2")
			sel := selection
			sel.Owner, sel.Limit = "slow", 1
			claims := map[int64]*parked.Claim{}
			for range 2 {
				c := claim(t, s, sel)[0]
				claims[c.ID] = c.Claim
			}
			goOn := slow(t, db, "slow")
			ended := make(chan error, 1)
			var all []*parked.Claim
			for _, c := range claims {
				all = append(all, c)
			}
			go func() { ended <- s.Extend(t.Context(), time.Hour, all) }()
			testkit.Eventually(t, 20*time.Second, "the first is renewed", func() bool { return waitingForLocks(t, db) == 1 })
			var second int64
			if err := unlocked(t, db, &second); err != nil {
				t.Fatal(err)
			}
			if err := s.Resolve(t.Context(), claims[second]); err != nil {
				t.Fatal(err)
			}
			goOn()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if left := rows.Parked(t, s, parked.Waiting); len(left) != 1 || time.Until(left[0].DueAt) < 2*selection.Lease {
				t.Fatalf("%+v", left)
			}
		})
	}
}

// unlocked finds the row that no transaction has locked.
func unlocked(t *testing.T, db testkit.Database, id *int64) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	err = tx.QueryRowContext(t.Context(), `SELECT id FROM once_parked FOR UPDATE SKIP LOCKED`).Scan(id)
	return errors.Join(err, tx.Rollback())
}
