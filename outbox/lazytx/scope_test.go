package lazytx

import "testing"

func TestScopeOfStatement(t *testing.T) {
	t.Parallel()
	none, ends, savepoint, looks := scope{}, scope{ends: true}, scope{savepoint: true}, scope{looks: true}
	for query, want := range map[string]scope{
		`ROLLBACK`:                                   ends,
		`select 1;commit;begin`:                      ends,
		"select 1 ;\n\t commit":                      ends,
		`/* a; */End`:                                ends,
		`SELECT 1; /* */ End`:                        ends,
		"-- a\n -- b\nABORT AND CHAIN":               ends,
		"/* /* */ */ COMMIT":                         ends,
		"/* never ends COMMIT":                       ends,
		"SELECT 1; -- a\n COMMIT":                    ends,
		`SELECT '/*'; COMMIT; -- */`:                 ends,
		`PREPARE TRANSACTION 'x'`:                    ends,
		"ROLLBACK\nTO a":                             ends,
		`SavePoint a`:                                savepoint,
		`;release savepoint a`:                       savepoint,
		`SET CONSTRAINTS ALL IMMEDIATE`:              looks,
		`SELECT 1; SET LOCAL ROLE a`:                 looks,
		`RESET ROLE`:                                 looks,
		`DISCARD TEMP`:                               looks,
		`SELECT set_config('search_path', $1, true)`: looks,
		`UPDATE pg_settings SET setting = 'a' WHERE name = 'role'`: looks,
		`EXPLAIN ANALYZE EXECUTE a`:                                looks,
		`SELECT count(*) FROM "sales"."evt_OUTBOX"`:                looks,
		`SELECT nextval('once_outbox_position')`:                   looks,
		`UPDATE a SET b = CASE WHEN c THEN 1 END`:                  none,
		"-- name: End :exec\nUPDATE a SET b = 1":                   none,
		`/* a */ INSERT INTO roles (role, schema) VALUES ($1, $2)`: none,
		``:    none,
		`-- `: none,
		`INSERT INTO orders VALUES ($1, 'pending', "legend")`:            none,
		`SELECT committed, end_at, "rollback2", prepared, out FROM éend`: none,
	} {
		if got := scopeOf(query); got != want {
			t.Errorf("%q: %+v, want %+v", query, got, want)
		}
	}
}
