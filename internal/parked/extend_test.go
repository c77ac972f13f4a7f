package parked_test

import (
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// If the database refuses the commit of a renewal, the caller gets the error. The
// leases count as ended in this process too, because they end in the table.
func TestLeaseEndsIfItsRenewalFails(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newStore(t, db)
	deliver(t, s, "m1", "m2")
	sel := selection
	sel.Lease = time.Millisecond
	var claims []*parked.Claim
	for _, c := range claim(t, s, sel) {
		claims = append(claims, c.Claim)
	}
	refuseCommits(t, s)
	testkit.Eventually(t, 20*time.Second, "the leases have ended", func() bool { return !claims[0].Leased() && !claims[1].Leased() })
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
func refuseCommits(t *testing.T, s *parked.Store) {
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
	db := testkit.Postgres(t)
	s := newStore(t, db)
	fill(t, db, "live", "acme", 2)
	refuseCommits(t, s)
	sel := selection
	sel.Turns = &parked.TenantTurns{}
	claimed, err := s.Claim(t.Context(), sel)
	if err == nil || !strings.Contains(err.Error(), "refused") || len(claimed) != 0 || *sel.Turns != (parked.TenantTurns{}) {
		t.Errorf("%d rows are claimed, the turns are %+v: %v", len(claimed), *sel.Turns, err)
	}
}
