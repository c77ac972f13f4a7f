package testkit

import (
	"encoding/json"
	"testing"
)

// PagesRead returns how many pages PostgreSQL has read for a query. plan is the output
// of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
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
