package parkedrows

import (
	"cmp"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
)

// storeIn creates the tables in a database, and returns its Store.
func storeIn(t *testing.T, db kit.Database) *Store {
	t.Helper()
	config := kit.Tables(t, db)
	s, err := NewStore(db.DB, config)
	kit.OK(t, err)
	return s
}

// pollOf returns a Poll whose first result had no due rows, and its Store.
func pollOf(t *testing.T, db kit.Database) (*Store, *Poll) {
	t.Helper()
	s := storeIn(t, db)
	p := s.Poll()
	if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() || due.Crashed {
		t.Fatalf("the table is empty, and Due returns %+v, %v", due, err)
	}
	return s, p
}

var pollSelect = Select{Consumer: "consumer", Topic: "topic"}

func TestPollFindsDueRowsOfEachKindAfterAQuietTime(t *testing.T) {
	t.Parallel()
	for kind, change := range map[string]string{
		"live":    `UPDATE once_parked SET priority_class = 'live'`,
		"retry":   `UPDATE once_parked SET priority_class = 'retry'`,
		"replay":  `UPDATE once_parked SET priority_class = 'replay'`,
		"crashed": `UPDATE once_parked SET crashes = 1`,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
				s, p := pollOf(t, db)
				look := func() (fresh, crashed bool) {
					t.Helper()
					due, err := p.Due(t.Context(), pollSelect)
					kit.OK(t, err)
					return due.Fresh(), due.Crashed
				}
				failure := Failure{Err: errors.New("handler failed")}
				msg := message.NewMessage("m", nil)
				kit.OK(t, s.Park(t.Context(), &Delivery{Consumer: "consumer", Topic: "topic"}, msg, failure, time.Hour))
				kit.Exec(t, db, change)
				for range 10 { // PostgreSQL may choose another plan for a prepared query after some executions
					if fresh, crashed := look(); fresh || crashed {
						t.Fatal("a row is due before its time")
					}
				}
				kit.Exec(t, db, `UPDATE once_parked SET due_at = `+anHourAgo(db))
				for range 3 {
					if fresh, crashed := look(); fresh != (kind != "crashed") || crashed != (kind == "crashed") {
						t.Fatalf("a due row is found: %v, one of a process that died: %v", fresh, crashed)
					}
				}
			})
		})
	}
}

func anHourAgo(db kit.Database) string {
	if db.Dialect == "sqlite" {
		return `due_at - 7200000`
	}
	return `due_at - interval '2 hours'`
}

func TestQuietPollUsesNoTransaction(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	db.SetMaxOpenConns(1)
	_, p := pollOf(t, db)
	server, err := kit.Connector(db.DSN)
	kit.OK(t, err)
	observer := sql.OpenDB(server)
	defer func() { _ = observer.Close() }()
	for range 2 {
		if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() {
			t.Fatalf("Due returns %+v, %v", due, err)
		}
		var last string
		err := observer.QueryRowContext(t.Context(), `SELECT query FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&last)
		if err != nil || strings.EqualFold(last, "commit") {
			t.Errorf("the last statement of the poll is %q (%v)", last, err)
		}
	}
}

func TestPollIsPlannedOnce(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	db.SetMaxOpenConns(1)
	_, p := pollOf(t, db)
	for range 2 {
		_, err := p.Due(t.Context(), pollSelect)
		kit.OK(t, err)
	}
	var plans int
	kit.OK(t, db.QueryRowContext(t.Context(),
		`SELECT COALESCE(SUM(custom_plans), 0) FROM pg_prepared_statements WHERE name LIKE 'once%'`).Scan(&plans))
	if plans != 0 {
		t.Errorf("it was planned for %d searches", plans)
	}
}

// The error of the query outside of a transaction is not returned. The query in a
// transaction returns it.
func TestPollReturnsTheErrorOfTheDatabase(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		_, p := pollOf(t, db)
		kit.Exec(t, db, `ALTER TABLE once_parked RENAME TO gone`)
		if _, err := p.Due(t.Context(), pollSelect); err == nil || !strings.Contains(err.Error(), "look for parked messages") {
			t.Errorf("the table is gone, and the error is %v", err)
		}
		kit.Exec(t, db, `ALTER TABLE gone RENAME TO once_parked`)
		if due, err := p.Due(t.Context(), pollSelect); err != nil || due.Fresh() {
			t.Errorf("the table is back, and Due returns %+v, %v", due, err)
		}
	})
}

// Due finds only tenants with a due row, because a claim for other tenants would find
// no row. If a priority class has no due rows, Due does not look for its tenants.
func TestDueFindsOnlyTenantsWithDueRows(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := storeIn(t, db)
		for tenant, delay := range map[string]time.Duration{
			"a": time.Hour, "b": time.Millisecond, "c": time.Hour, "live": time.Hour, "replay": time.Hour,
		} {
			msg := message.NewMessage(tenant, nil)
			msg.Metadata[meta.TenantID] = tenant
			failure := Failure{Err: errors.New("handler failed")}
			kit.OK(t, s.Park(t.Context(), &Delivery{Consumer: "consumer", Topic: "topic"}, msg, failure, delay))
		}
		if _, err := db.ExecContext(t.Context(),
			`UPDATE once_parked SET priority_class = message_id WHERE message_id IN ('live', 'replay')`); err != nil {
			t.Fatal(err)
		}
		var due *Due
		kit.Eventually(t, 20*time.Second, "the row of b is due", func() bool {
			var err error
			due, err = s.Due(t.Context(), Select{Consumer: "consumer", Topic: "topic"})
			kit.OK(t, err)
			return due.Fresh()
		})
		if got := due.tenants[retryClass]; !slices.Equal(got, []string{"b"}) {
			t.Errorf("Due found %q, want only b", got)
		}
		if want := [len(classes)]string{retryClass: "c"}; due.last != want {
			t.Errorf("the last tenants of the classes are %q, want %q", due.last, want)
		}
	})
}

// A statement that names its rows or keys reads only these rows, whatever statistics
// PostgreSQL has. For example, PostgreSQL may have collected the statistics when the
// table was empty.
func TestStatementsReadOnlyTheirRows(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t)
	db.SetMaxOpenConns(1) // so that all statements use the connection with the settings
	s := storeIn(t, db)
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, db, query)
	}
	rows := kit.Sized(10_000, 30_000) // for each state
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
		"due":     {"text, text, text, text, text", s.sql.due.Query(), `'c', 't', '', '', ''`},
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
				kit.OK(t, db.QueryRowContext(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE statement (`+of.args+`)`).Scan(&text))
				exec(`ROLLBACK`)
				exec(`DEALLOCATE statement`)
				if pages := kit.PagesRead(t, text); pages > cmp.Or(most[name], 300) {
					t.Errorf("%s, %s, the table was looked at %s: %d pages for %s", name, plan, known, pages, text)
				}
			}
		}
		exec(`ANALYZE once_parked`)
	}
}
