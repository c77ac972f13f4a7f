package lazytx

import "testing"

func TestEndsTransaction(t *testing.T) {
	for query, want := range map[string]bool{
		`ROLLBACK`:                      true,
		`select 1;commit;begin`:         true,
		`/* */End`:                      true,
		`Abort AND CHAIN`:               true,
		`PREPARE TRANSACTION 'x'`:       true,
		"ROLLBACK\nTO a":                true,
		`SELECT CASE WHEN a THEN 1 END`: true,
		``:                              false,
		`INSERT INTO orders VALUES ($1, 'pending', "legend")`:       false,
		`SELECT committed, end_at, "rollback2", prepared FROM éend`: false,
	} {
		if got := endsTransaction(query); got != want {
			t.Errorf("%q: %t, want %t", query, got, want)
		}
	}
}
