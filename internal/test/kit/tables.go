package kit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"go.uber.org/goleak"

	"github.com/watermill-once/once/schema"
)

// Creating and dropping the tables takes a tenth of a second of CPU time for each test.
// So the next test gets the same database with its tables, after the rows that the
// earlier test has written were deleted.

// withTables says whether new databases get the tables. [MainWithTables] sets it to
// true.
var withTables bool

// MainWithTables is like [Main] for a package whose tests begin with schema.Up.
// [Postgres], [PostgresAlone] and [EachDatabase] return PostgreSQL databases in which
// schema.Up has created the tables, with the default configuration. A test that needs a
// database without tables uses [EmptyPostgres].
func MainWithTables(m *testing.M, options ...goleak.Option) {
	withTables = true
	Main(m, options...)
}

// prepared is a database in which schema.Up has created the tables.
type prepared struct {
	name string

	// fingerprint is the result of the query fingerprint after schema.Up.
	fingerprint string

	// rows are the rows that schema.Up has written to each table, as JSON.
	rows map[string]string
}

// fingerprint is a query for everything that a test can change in tables, apart from
// their rows. For most catalogues it reads only the xmin of each row, because each
// change of a row changes the row's xmin. It reads the columns of pg_class instead,
// because TRUNCATE also changes the xmin of rows there.
const fingerprint = `SELECT concat_ws('; ',
	(SELECT md5(string_agg(concat_ws(' ', oid, relname, relkind, relowner, relacl::text, reloptions::text, relpersistence, relnatts,
			relchecks, relrowsecurity, relreplident), ',' ORDER BY oid))
		FROM pg_class WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_attribute WHERE attrelid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_index WHERE indexrelid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_constraint WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_attrdef WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_trigger WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_rewrite WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_proc WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_type WHERE oid >= 16384),
	(SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM pg_sequence),
	(SELECT count(*) FROM pg_policy), (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384), (SELECT count(*) FROM pg_statistic_ext)
) || '; ' || (` + state + `)`

// takePrepared returns a database with the tables. A test of this process or of an
// earlier one has used it, or it is new.
func (p *postgres) takePrepared(ctx context.Context) (prepared, error) {
	p.mu.Lock()
	if n := len(p.prepared); n > 0 {
		db := p.prepared[n-1]
		p.prepared = p.prepared[:n-1]
		p.mu.Unlock()
		return db, nil
	}
	p.mu.Unlock()
	prefix, err := tablesPrefix()
	if err != nil {
		return prepared{}, err
	}
	if db, err := p.claim(ctx, prefix); err != nil || db.name != "" {
		return db, err
	}
	name, err := p.take(ctx)
	if err != nil {
		return prepared{}, err
	}
	made := prepared{name: name}
	err = p.withConnection(name, func(db *sql.DB) error {
		if err := schema.Up(ctx, db, schema.Config{}); err != nil {
			return err
		}
		if made.rows, err = writtenRows(ctx, db); err != nil {
			return err
		}
		return db.QueryRowContext(ctx, fingerprint).Scan(&made.fingerprint)
	})
	if err != nil {
		return prepared{}, errors.Join(err, p.drop(ctx, name))
	}
	return made, nil
}

// givePrepared restores the tables of a database, so that the next call of takePrepared
// can return it. If the tables cannot be restored, it empties or drops the database.
func (p *postgres) givePrepared(ctx context.Context, db prepared) error {
	if err := p.clean(ctx, db); err != nil {
		return p.give(ctx, db.name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepared = append(p.prepared, db)
	return nil
}

func (p *postgres) clean(ctx context.Context, used prepared) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.endOthers(ctx, used.name); err != nil {
		return err
	}
	return p.withConnection(used.name, func(db *sql.DB) error {
		if err := dropOthers(ctx, db); err != nil {
			return err
		}
		var now string
		if err := db.QueryRowContext(ctx, fingerprint).Scan(&now); err != nil {
			return err
		}
		if now != used.fingerprint {
			return errChanged
		}
		return restoreRows(ctx, db, used.rows)
	})
}

// others is a query for the statements that drop the schemas, tables, views, sequences
// and functions that schema.Up has not created. CASCADE also drops the triggers that
// call the functions. It is no DO block, because a session needs 4 ms to load PL/pgSQL.
const others = `SELECT coalesce('SET client_min_messages = warning; ' || string_agg('DROP ' || command || ' CASCADE', '; '), '') FROM (
		SELECT format('SCHEMA %I', nspname) AS command FROM pg_namespace
			WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'public')
		UNION ALL SELECT format(CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END
				|| ' IF EXISTS public.%I', relname) -- CASCADE may have dropped it
			FROM pg_class WHERE oid >= 16384 AND relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
				AND relname !~ '^once_' AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid
					AND deptype = 'i') -- of an identity column: dropped with its table
		UNION ALL SELECT 'FUNCTION ' || oid::regprocedure FROM pg_proc
			WHERE oid >= 16384 AND pronamespace = 'public'::regnamespace AND proname !~ '^once_') AS others`

func dropOthers(ctx context.Context, db *sql.DB) error {
	var statements string
	err := db.QueryRowContext(ctx, others).Scan(&statements)
	if err == nil && statements != "" {
		_, err = db.ExecContext(ctx, statements)
	}
	return err
}

// writtenRows returns the rows of each table that has rows, as JSON. The keys are the
// quoted names of the tables.
func writtenRows(ctx context.Context, db *sql.DB) (map[string]string, error) {
	var written pq.StringArray
	err := db.QueryRowContext(ctx, `SELECT array_agg(quote_ident(relname)) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0`).Scan(&written)
	if err != nil {
		return nil, err
	}
	rows := map[string]string{}
	for _, table := range written {
		var text string
		if err := db.QueryRowContext(ctx, fmt.Sprintf(`SELECT json_agg(t) FROM %s AS t`, table)).Scan(&text); err != nil {
			return nil, err
		}
		rows[table] = text
	}
	return rows, nil
}

// largest is the size in bytes, without indexes, of the largest table whose rows are
// deleted with DELETE. Larger tables are truncated. TRUNCATE makes new files for the
// table and its indexes, which takes the file system a long time when files were just
// removed.
const largest = 1 << 17

// restoreRows deletes all rows, inserts the rows that schema.Up has written, restarts the
// sequences, and resets the server's statistics.
func restoreRows(ctx context.Context, db *sql.DB, written map[string]string) error {
	var small, large pq.StringArray
	err := db.QueryRowContext(ctx, `SELECT array_agg(quote_ident(relname)) FILTER (WHERE size <= $1),
			array_agg(quote_ident(relname)) FILTER (WHERE size > $1)
		FROM (SELECT relname, pg_table_size(oid) AS size FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0) AS tables`, largest).Scan(&small, &large)
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("SET track_counts = off;\n") // otherwise this session adds its own reads after it has reset the counts
	for _, table := range small {
		fmt.Fprintf(&text, "DELETE FROM %s;\n", table)
	}
	if len(large) > 0 {
		fmt.Fprintf(&text, "TRUNCATE %s;\n", strings.Join(large, ", "))
	}
	for table, rows := range written {
		fmt.Fprintf(&text, "INSERT INTO %s OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::%[1]s, %s);\n",
			table, pq.QuoteLiteral(rows))
	}
	text.WriteString(`SELECT setval(quote_ident(sequencename)::regclass, start_value, false) FROM pg_sequences
			WHERE schemaname = 'public' AND last_value IS NOT NULL;
		SELECT pg_stat_reset()`)
	_, err = db.ExecContext(ctx, text.String())
	return err
}

func (p *postgres) withConnection(name string, f func(db *sql.DB) error) error {
	kept := p.sessionsOf(name)
	db, err := openPostgres(withDatabase(p.dsn, name), kept)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	return errors.Join(f(db), kept.keep(db.Close))
}
