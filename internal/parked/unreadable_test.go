package parked_test

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// If a claimed row cannot be read, because the connection is lost or the context ends,
// Claim returns an error.
func TestClaimFailsIfARowCannotBeRead(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newStore(t, db)
	deliver(t, s, "m1")
	_, err := db.ExecContext(t.Context(), `
		ALTER TABLE once_parked DROP CONSTRAINT once_parked_rounds_check, ALTER rounds DROP DEFAULT,
			ALTER rounds TYPE text USING 'many'`)
	if err != nil {
		t.Fatal(err)
	}
	if claims, err := s.Claim(t.Context(), selection); err == nil {
		t.Errorf("%d rows were claimed", len(claims))
	}
}
