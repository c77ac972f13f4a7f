package parked_test

import (
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// The database refuses the commit of a renewal. The caller gets the error, and the
// leases count as ended, as they are in the table.
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
	_, err := db.ExecContext(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON once_parked DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
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
