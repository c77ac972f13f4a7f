package parked

import (
	"cmp"
	"strconv"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// A statement that names its rows or keys reads only these rows, whatever statistics
// PostgreSQL has. For example, PostgreSQL may have collected the statistics when the
// table was empty.
func TestStatementsReadOnlyTheirRows(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyPostgres(t)
	db.SetMaxOpenConns(1) // so that all statements use the connection with the settings
	s := storeIn(t, db)
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	rows := testkit.Sized(10_000, 30_000) // for each state
	fill := func(state, key string) {
		exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, ordering_key, state, due_at)
			SELECT 'c', 't', gen_random_uuid()::text, '', '', ` + key + `, '` + state + `', now()
			FROM generate_series(1, ` + strconv.Itoa(rows) + `) AS i`)
	}
	exec(`ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	fill("resolved", `NULL`)
	exec(`DELETE FROM once_parked`)
	exec(`ANALYZE once_parked`)
	fill("waiting", `'k' || i`)
	fill("held", `'k' || i % 1000 + 1`)
	fill("held", `'orphan' || i % 10`)
	fill("resolved", `NULL`)
	// Rows that another consumer keeps for longer, and replayed rows.
	exec(`UPDATE once_parked SET consumer = CASE WHEN id % 2 = 0 THEN 'other' ELSE 'c' END, replays = id % 2,
		finished_at = now() - interval '1 hour' WHERE state = 'resolved'`)

	const none = `'{"","","",""}', `
	statements := map[string]struct{ types, query, args string }{
		"inOrder": {
			"text, text, text, text, text, text, bytea, bytea, text, text, text, text, text", s.sql.inOrder,
			`'c', 't', '{a,b,c,d}', '{"","","",""}', '{1,2,3,4}', '{1,1,1,1}', '\x00112233', '\x00112233', ` +
				none + none + none + none + `'{k1,k2000,new,orphan1}'`,
		},
		"promote": {"text, text, text", s.sql.order.promote, `'{c,c,c,c}', '{t,t,t,t}', '{k1,orphan2,orphan3,none}'`},
		"keysOf":  {"text", s.sql.order.keysOf, `'{1,2,3}'`},
		"remove":  {"text, text", s.sql.remove, `'{1,2,3}', '{"1 x","2 x"}'`},
		"resolve": {"text, text", s.sql.resolve, `'{1,2,3}', '{"1 x","2 x"}'`},
		"release": {"text, text, bigint", s.sql.release, `'{1,2,3}', '{"1 x","2 x"}', 0`},
		"extend":  {"text, text, bigint", s.sql.extend, `'{1,2,3}', 'x', 1000`},
		"forget":  {"text, text, bigint, bigint", s.sql.forget, `'c', 't', 0, 100`},

		// This query examines all keys with held rows: 1,010 keys.
		"orphans": {"text, text, bigint", s.sql.order.orphans, `'c', 't', 1000`},
	}
	most := map[string]int{"orphans": 10_000}
	exec(`SET statement_timeout = '20s'`)
	for _, known := range []string{"when it was empty", "now"} {
		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			for name, of := range statements {
				exec(`SET plan_cache_mode = ` + plan)
				exec(`PREPARE statement (` + of.types + `) AS ` + of.query)
				exec(`BEGIN`)
				var text []byte
				err := db.QueryRowContext(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE statement (`+of.args+`)`).Scan(&text)
				if err != nil {
					t.Fatal(err)
				}
				exec(`ROLLBACK`)
				exec(`DEALLOCATE statement`)
				if pages := testkit.PagesRead(t, text); pages > cmp.Or(most[name], 300) {
					t.Errorf("%s, %s, the table was looked at %s: %d pages for %s", name, plan, known, pages, text)
				}
			}
		}
		exec(`ANALYZE once_parked`)
	}
}
