package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// firstTwo is the query of these tests: the two lowest numbers above $1.
const firstTwo = `SELECT n FROM numbers WHERE n > $1 ORDER BY n LIMIT $2`

// numbers is a database with an empty table, a single connection, and one driver.
type numbers struct {
	*testing.T
	*sql.DB
	dialect dialect.Dialect
}

func eachReader(t *testing.T, test func(n numbers, driver string)) {
	t.Parallel()
	d := kit.Dialect(t, schema.Config{})
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			// Other tests change many tables. If a server cannot keep up with that, it makes all plans anew.
			db, err := sql.Open(driver, kit.PostgresAlone(t).DSN)
			kit.OK(t, err)
			defer db.Close()
			db.SetMaxOpenConns(1)
			n := numbers{t, db, d}
			n.exec(`CREATE TABLE numbers (n bigint PRIMARY KEY) WITH (autovacuum_enabled = off)`)
			n.exec(`VACUUM ANALYZE numbers`)
			test(n, driver)
		})
	}
}

func (n numbers) exec(query string) {
	n.Helper()
	kit.Exec(n, n, query)
}

// fill inserts the numbers from 1 to last.
func (n numbers) fill(last int) {
	n.Helper()
	n.exec(fmt.Sprintf(`INSERT INTO numbers SELECT generate_series(1, %d)`, last))
}

// expect reads the two lowest numbers above the number above.
func (n numbers) expect(r *dialect.Reader, above int64, want ...int64) {
	n.Helper()
	var got []int64
	kit.OK(n, r.Read(n.Context(), n.dialect.Statement("", firstTwo), []any{above, int64(2)}, func(rows *sql.Rows) error {
		for rows.Next() {
			var number int64
			if err := rows.Scan(&number); err != nil {
				return err
			}
			got = append(got, number)
		}
		return rows.Err()
	}))
	if !slices.Equal(got, want) {
		n.Fatalf("got the numbers %v, want %v", got, want)
	}
}

// prepared returns the names of the connection's prepared queries that begin with a text.
func (n numbers) prepared(beginning string) (names []string) {
	n.Helper()
	rows, err := n.QueryContext(n.Context(), `SELECT name, statement FROM pg_prepared_statements`)
	kit.OK(n, err)
	defer rows.Close()
	for rows.Next() {
		var name, statement string
		kit.OK(n, rows.Scan(&name, &statement))
		if _, query, found := strings.Cut(statement, " AS "); found && strings.HasPrefix(statement, "PREPARE ") {
			statement = query
		}
		if strings.HasPrefix(statement, beginning) {
			names = append(names, name)
		}
	}
	kit.OK(n, rows.Err())
	return names
}

// A Reader prepares a query once on each connection. It reads the same rows if somebody
// has removed the prepared query, and no longer prepares queries if that happens often.
func TestReaderPreparesQueries(t *testing.T) {
	eachReader(t, func(n numbers, driver string) {
		if driver == "pgx" {
			return // pgx prepares queries itself
		}
		n.fill(5)
		r := n.dialect.Reader(n.DB)
		for range 3 {
			n.expect(r, 1, 2, 3)
			n.expect(r, 4, 5)
		}
		names := n.prepared(firstTwo)
		if len(names) != 1 || !strings.HasPrefix(names[0], "once_") {
			n.Fatalf("the prepared queries are %q, want one whose name begins with once_", names)
		}
		other := n.dialect.Reader(n.DB) // another process, behind a pooler
		n.expect(other, 1, 2, 3)
		if names := n.prepared(firstTwo); len(names) != 1 {
			n.Fatalf("the prepared queries are %q, want one", names)
		}
		for range 5 {
			n.expect(r, 1, 2, 3)
			n.exec(`DEALLOCATE ALL`)
			n.expect(r, 1, 2, 3) // sends the text
		}
		n.expect(r, 1, 2, 3)
		if names := n.prepared(firstTwo); len(names) != 0 {
			n.Fatalf("the prepared queries are %q, want none: preparing has failed five times", names)
		}
	})
}

// Several Readers may use one connection. PREPARE must not fail then, because each error
// is a line in the log of the server.
func TestReadersOfOneConnectionCauseNoErrors(t *testing.T) {
	eachReader(t, func(n numbers, driver string) {
		prompt := kit.One[bool](n, n, `SELECT to_regproc('pg_stat_force_next_flush') IS NOT NULL`)
		if !prompt {
			n.Skip("before version 15, PostgreSQL shows late how many statements have failed")
		}
		n.fill(3)
		failed := func() (count int) {
			n.Helper()
			n.exec(`SELECT pg_stat_force_next_flush()`)
			kit.OK(n, n.QueryRowContext(n.Context(), `SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&count))
			return count
		}
		before := failed()
		for range 3 {
			n.expect(n.dialect.Reader(n.DB), 1, 2, 3)
		}
		if after := failed(); after != before {
			n.Errorf("%d statements failed", after-before)
		}
	})
}

// A prepared query may have been planned while its table was empty. Its plan reads the
// whole table, so it must not stay when the table has grown.
func TestOldPlansAreDiscarded(t *testing.T) {
	eachReader(t, func(n numbers, driver string) {
		r := n.dialect.Reader(n.DB)
		works := map[string]func(want ...int64){
			firstTwo: func(want ...int64) { n.expect(r, 0, want...) },
		}
		if driver == "pgx" { // lib/pq keeps no plans of statements in transactions
			for name, run := range map[string]func(context.Context, *sql.DB, func(tx *sql.Tx) error) error{
				"Read": n.dialect.Read, "Write": n.dialect.Write,
			} {
				beginning := `SELECT count(*) AS ` + name + ` FROM (`
				works[beginning] = func(want ...int64) {
					n.Helper()
					kit.OK(n, run(n.Context(), n.DB, func(tx *sql.Tx) error {
						var count int
						err := tx.QueryRowContext(n.Context(), beginning+firstTwo+`) AS f`, int64(0), int64(2)).Scan(&count)
						if err == nil && count != len(want) {
							n.Fatalf("count is %d, want %d", count, len(want))
						}
						return err
					}))
				}
			}
		}
		for beginning, work := range works {
			n.exec(`TRUNCATE numbers`)
			n.exec(`VACUUM ANALYZE numbers`)
			for range 10 {
				work()
			}
			plan := func() string {
				n.Helper()
				names := n.prepared(beginning)
				if len(names) != 1 {
					n.Fatalf("%s: the prepared queries are %q, want one", beginning, names)
				}
				return strings.Join(kit.Lines(n, n, `EXPLAIN EXECUTE `+names[0]+`(0, 2)`), "\n")
			}
			plan() // the busy machine may have discarded the plan
			n.fill(400_000)
			if got := plan(); !strings.Contains(got, "Seq Scan") {
				n.Fatalf("%s: the plan does not come from the empty table, so this test shows nothing:\n%s", beginning, got)
			}
			// There is a minimum time between two discards.
			kit.Eventually(n.T, 10*time.Second, beginning+": the plan does not read the whole table", func() bool {
				work(1, 2)
				return !strings.Contains(plan(), "Seq Scan")
			})
		}
	})
}

func TestPreparesRecognisesPgx(t *testing.T) {
	t.Parallel()
	database := kit.Postgres(t)
	for name, want := range map[string]bool{"pgx": true, "postgres": false} {
		db, err := sql.Open(name, database.DSN)
		kit.OK(t, err)
		defer db.Close()
		tx := kit.Begin(t, db)
		if got := dialect.Prepares(tx); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
		kit.OK(t, tx.Rollback())
		_ = dialect.Prepares(tx) // no panic after the end
	}
}

// Ended reads private fields of the drivers. So this test fails if a new version of a
// driver has other fields.
func TestEndedRecognisesEachDriver(t *testing.T) {
	t.Parallel()
	database := kit.Postgres(t)
	ours := kit.Dialect(t, schema.Config{})
	for _, name := range []string{"pgx", "postgres"} {
		db, err := sql.Open(name, database.DSN)
		kit.OK(t, err)
		defer db.Close()
		tx, release, err := ours.BeginScope(t.Context(), db, ours.Check())
		kit.OK(t, err)
		if err := dialect.Ended(tx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		kit.Exec(t, tx, `ROLLBACK`)
		if err := dialect.Ended(tx); !errors.Is(err, dialect.ErrEnded) {
			t.Errorf("%s: after ROLLBACK Ended returns %v", name, err)
		}
		release()
		if err := dialect.Ended(tx); err != nil {
			t.Errorf("%s: after its end, the transaction is %v", name, err)
		}
	}
}
