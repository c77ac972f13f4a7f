package testkit

import (
	"encoding/json"
	"testing"
)

// PagesRead returns how many pages PostgreSQL has read for a query. The parameter plan
// is the output of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
func PagesRead(t testing.TB, plan []byte) int {
	t.Helper()
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal(plan, &explained); err != nil {
		t.Fatal(err)
	}
	return explained[0].Plan.Hit + explained[0].Plan.Read
}

// RowsRead returns how many rows of a table, and entries of its indexes, have been read
// so far. The database must be PostgreSQL. The pool db must have only one connection,
// because RowsRead makes only the statistics of its own connection visible.
func RowsRead(t testing.TB, db Database, table string) (n int) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	err := db.QueryRowContext(t.Context(), `SELECT (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = $1)
		+ (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = $1)`, table).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
