package parked

import "testing"

// A message without an ordering key costs no statement for the order of keys.
func TestNoKeysNeedNoStatement(t *testing.T) {
	t.Parallel()
	var s Store
	if err := s.promote(t.Context(), nil, nil); err != nil { // a statement would panic, because there is no transaction
		t.Error(err)
	}
	s.sql.order.lock = "SELECT 1"
	if err := s.lockKeys(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}
