package servers_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// With a pool of one connection, the transactions of two clients run one after the
// other in the same session of the server.
func TestPgbouncerSharesOneServerConnection(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	pooler := kit.PrivatePgbouncer(t, kit.PrivatePostgres(t), "default_pool_size = 1")
	var sessions []int
	for range 2 {
		db, err := sql.Open("postgres", pooler.DSN("postgres"))
		kit.OK(t, err)
		defer db.Close()
		pid := kit.One[int](t, db, "SELECT pg_backend_pid()")
		sessions = append(sessions, pid)
	}
	if sessions[0] != sessions[1] {
		t.Errorf("two clients have the sessions %v", sessions)
	}
	for range 2 {
		kit.Check(t, pooler.Close())
	}
}
