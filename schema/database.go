package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/usercode"
)

var (
	// ErrDialect means that the database is not of the kind in Config.Dialect.
	ErrDialect = errors.New("the database is not of the kind that Dialect names")

	// ErrEncoding means that the database, or the connection to it, does not use UTF-8.
	// With another encoding, some message ids, keys and error texts could not be stored.
	ErrEncoding = errors.New("the database is not in UTF-8")
)

func (c Config) checkDatabase(ctx context.Context, db querier) error {
	if err := c.checkDialect(ctx, db); err != nil {
		return err
	}
	if c.Dialect == SQLite { // every encoding of SQLite can store all of Unicode
		return nil
	}
	return checkUTF8(ctx, db)
}

// checkDialect returns an error that wraps ErrDialect if the database is not of the configured
// kind. The function that returns the version has another name, or another result, in each kind.
func (c Config) checkDialect(ctx context.Context, db querier) error {
	if c.Dialect == SQLite {
		_, err := versionOf(ctx, db, "sqlite_version")
		if err == nil {
			return nil
		}
		if version, other := versionOf(ctx, db, "version"); other == nil {
			return c.dialectError(version)
		}
		if strings.Contains(err.Error(), "sqlite_version") { // in a transaction, PostgreSQL refuses every query after an error
			return c.dialectError("not SQLite")
		}
		return err
	}
	version, err := versionOf(ctx, db, "version")
	switch {
	case err == nil && isMySQL(version):
		return c.dialectError(version)
	case err == nil:
		return nil
	}
	if version, other := versionOf(ctx, db, "sqlite_version"); other == nil {
		return c.dialectError("SQLite " + version)
	}
	return err
}

// explain returns an error that wraps ErrDialect if the database is not of the configured kind:
// then err only says that it does not understand the SQL.
func (c Config) explain(ctx context.Context, db querier, err error) error {
	if kind := c.checkDialect(ctx, db); errors.Is(kind, ErrDialect) {
		return kind
	}
	return usercode.HideDSN(err)
}

func versionOf(ctx context.Context, db querier, function string) (version string, err error) {
	err = db.QueryRowContext(ctx, "SELECT "+function+"()").Scan(&version)
	return version, usercode.HideDSN(err)
}

// Versions of MySQL, MariaDB and derivatives begin with a digit, those of PostgreSQL with a name.
func isMySQL(version string) bool { return version != "" && version[0] >= '0' && version[0] <= '9' }

func (c Config) dialectError(version string) error {
	remedy := "use a database of that kind"
	switch {
	case isMySQL(version):
		if !strings.Contains(version, "MariaDB") {
			version = "MySQL " + version
		}
		remedy = "there is no dialect for it, use PostgreSQL or SQLite"
	case strings.HasPrefix(version, "SQLite"):
		remedy = "set Config.Dialect to schema.SQLite"
	case strings.HasPrefix(version, "PostgreSQL"):
		version = strings.Join(strings.Fields(version)[:2], " ")
		remedy = "set Config.Dialect to schema.PostgreSQL"
	}
	return fmt.Errorf("%w: Dialect is %q, the database is %s: %s", ErrDialect, c.Dialect, version, remedy)
}

// With another client encoding, the server would read the UTF-8 strings of the driver as other
// characters.
func checkUTF8(ctx context.Context, db querier) error {
	var name, server, client string
	err := db.QueryRowContext(ctx, `SELECT current_database(), current_setting('server_encoding'), current_setting('client_encoding')`).
		Scan(&name, &server, &client)
	switch {
	case err != nil:
		return usercode.HideDSN(err)
	case server != "UTF8":
		return fmt.Errorf("%w: database %q is encoded in %s: make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, "+
			"and move the data with pg_dump and pg_restore", ErrEncoding, name, server)
	case client != "UTF8":
		return fmt.Errorf("%w: client_encoding of the connection to %q is %s: set it to UTF8 in the data source name, "+
			"or with ALTER ROLE ... SET client_encoding = 'UTF8'", ErrEncoding, name, client)
	}
	return nil
}

// ErrNotDurable means that the database may lose commits in a crash.
var ErrNotDurable = errors.New("the database may lose commits in a crash")

// Durability returns nil if commits through db survive a crash of the database server.
// Otherwise it returns an error that wraps [ErrNotDurable] and names the setting to
// change, or an error that wraps [ErrDialect], or the database's own error. Use
// Durability to log a warning when a service starts. db is a *sql.DB, a
// *sql.Conn or a *sql.Tx. Durability changes nothing.
//
// A message is acked after its commit, and an event is deleted after it was sent. If a
// crash then undoes the commit, its effect is lost: no code repeats it, because the
// message or the event no longer exists. For PostgreSQL, Durability checks
// synchronous_commit and fsync, and whether the outbox, the inbox or the parked
// messages are in unlogged tables. For SQLite it checks PRAGMA synchronous.
func Durability(ctx context.Context, db querier, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()
	why, err := config.notDurable(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: durability: %w", config.explain(ctx, db, err))
	case why != "":
		return fmt.Errorf("schema: %w: %s", ErrNotDurable, why)
	}
	return nil
}

func (c Config) notDurable(ctx context.Context, db querier) (why string, err error) {
	if c.Dialect == SQLite {
		var synchronous int
		err := db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous)
		if err == nil && synchronous == 0 {
			why = "PRAGMA synchronous is OFF: set it to NORMAL or FULL in the data source name"
		}
		return why, err
	}
	var synchronous, fsync, unlogged string
	query := fmt.Sprintf(`SELECT current_setting('synchronous_commit'), current_setting('fsync'), COALESCE(string_agg(relname, ', '), '')
		FROM pg_class WHERE relpersistence = 'u' AND oid IN (to_regclass('%s'), to_regclass('%s'), to_regclass('%s'))`,
		c.Table("outbox"), c.Table("inbox"), c.Table("parked"))
	err = db.QueryRowContext(ctx, query).Scan(&synchronous, &fsync, &unlogged)
	switch {
	case err != nil:
		return "", err
	case fsync == "off":
		why = "fsync is off: set it to on in postgresql.conf"
	case synchronous == "off":
		why = "synchronous_commit is off: set it to on (ALTER ROLE ... SET synchronous_commit = on, or in the data source name)"
	case unlogged != "":
		why = fmt.Sprintf("unlogged tables (%s) are empty after a crash: run ALTER TABLE ... SET LOGGED", unlogged)
	}
	return why, nil
}

// ErrRowSecurity means that row level security is active for the database user on one of the
// tables. The user may then see only some of the rows, without an error, so messages would wait
// forever, or be handled twice.
var ErrRowSecurity = errors.New("row level security may hide rows")

// checkRowSecurity looks for row level security on tables that the user may use, and on their
// partitions. It is not active for superusers, roles with BYPASSRLS, and the owner, unless it is
// forced. Whether policies allow all rows cannot be proved, so it does not look at them.
func (c Config) checkRowSecurity(ctx context.Context, db querier, schema string) error {
	if c.Dialect == SQLite {
		return nil
	}
	query := fmt.Sprintf(`WITH tables AS (
			SELECT t.oid FROM pg_class AS t JOIN pg_namespace AS s ON s.oid = t.relnamespace
			WHERE s.nspname = '%s' AND t.relname = ANY (%s))
		SELECT current_user, COALESCE(string_agg(t.oid::regclass::text, ', ' ORDER BY t.relname), '')
		FROM pg_class AS t
		WHERE t.oid IN (SELECT oid FROM tables UNION SELECT inhrelid FROM pg_inherits WHERE inhparent IN (SELECT oid FROM tables))
		  AND t.relkind IN ('r', 'p') AND t.relrowsecurity AND row_security_active(t.oid)
		  AND has_any_column_privilege(t.oid, 'SELECT, INSERT, UPDATE')`, strings.ReplaceAll(schema, "'", "''"), c.names())
	var user, tables string
	if err := db.QueryRowContext(ctx, query).Scan(&user, &tables); err != nil {
		return fmt.Errorf("row level security: %w", err)
	}
	if tables == "" {
		return nil
	}
	first, _, _ := strings.Cut(tables, ", ")
	return fmt.Errorf("%w: it is active for user %q on %s: for each of these tables, run ALTER TABLE %s DISABLE ROW LEVEL SECURITY, "+
		"or exempt the user with ALTER ROLE %[2]q BYPASSRLS", ErrRowSecurity, user, tables, first)
}

// ErrSequence means that a sequence is behind its table, for example because logical
// replication does not copy sequences. New rows would get numbers that other rows
// already have, or numbers lower than those of older rows.
var ErrSequence = errors.New("a sequence is behind its table")

type numbered struct {
	Table    string `json:"table"`
	Column   string `json:"column"`
	Sequence string `json:"sequence"`
	Outbox   bool   `json:"outbox"`

	highest, last int64 // highest number in the table, and last number of the sequence
}

// checkSequences leaves out sequences and tables that the user may not read. SQLite never uses a
// number that is lower than those in the table.
func (c Config) checkSequences(ctx context.Context, db querier, schema string) error {
	if c.Dialect == SQLite {
		return nil
	}
	all, err := c.numbered(ctx, db, schema)
	if err != nil || len(all) == 0 {
		return err
	}
	selects := make([]string, len(all))
	for i, n := range all {
		highest := fmt.Sprintf("(SELECT max(%s) FROM %s)", n.Column, n.Table)
		if n.Outbox { // see repair
			highest = fmt.Sprintf("GREATEST(%s, (SELECT max(successors_after) FROM %s))", highest, c.Table("blocked_keys"))
		}
		selects[i] = fmt.Sprintf("SELECT %d AS n, COALESCE(%s, 0) AS highest, last_value, is_called FROM %s", i, highest, n.Sequence)
	}
	query := `SELECT COALESCE(json_agg(json_build_object('n', n, 'highest', highest, 'last', last_value) ORDER BY n), '[]')
		FROM (` + strings.Join(selects, " UNION ALL ") + `) AS s WHERE highest > last_value OR highest = last_value AND NOT is_called`
	var text string
	if err := db.QueryRowContext(ctx, query).Scan(&text); err != nil {
		return fmt.Errorf("sequences: %w", err)
	}
	var behind []struct {
		N       int   `json:"n"`
		Highest int64 `json:"highest"`
		Last    int64 `json:"last"`
	}
	if err := json.Unmarshal([]byte(text), &behind); err != nil || len(behind) == 0 {
		return err
	}
	var what, repairs []string
	for _, b := range behind {
		n := all[b.N]
		n.highest, n.last = b.Highest, b.Last
		what = append(what, fmt.Sprintf("%s is at %d, but %s already has the number %d", n.Sequence, n.last, n.Table, n.highest))
		repairs = append(repairs, c.repair(n))
	}
	return fmt.Errorf("%w: %s: run %s", ErrSequence, strings.Join(what, ", "), strings.Join(repairs, "; "))
}

// repair returns the SQL that moves a sequence behind the last number of its table. The forwarder
// sends in the order of positions, so messages that were stored since the sequence fell back, at
// positions up to its last value, first move to the end. A blocked key holds only messages above
// its number successors_after.
func (c Config) repair(n numbered) string {
	if !n.Outbox {
		return fmt.Sprintf("SELECT setval('%s', %d)", n.Sequence, n.highest)
	}
	blocked := c.Table("blocked_keys")
	return fmt.Sprintf("BEGIN; LOCK TABLE %[1]s IN EXCLUSIVE MODE; "+
		"UPDATE %[1]s AS o SET position = %[3]d + late.n FROM (SELECT position, row_number() OVER (ORDER BY position) AS n FROM %[1]s "+
		"WHERE position <= %[4]d AND created_at > (SELECT max(t) FROM (SELECT created_at AS t FROM %[1]s WHERE position > %[4]d "+
		"UNION ALL SELECT blocked_at FROM %[5]s WHERE successors_after > %[4]d) AS old)) AS late WHERE o.position = late.position; "+
		"SELECT setval('%[2]s', GREATEST(%[3]d, (SELECT max(position) FROM %[1]s))); COMMIT",
		n.Table, n.Sequence, n.highest, n.last, blocked)
}

func (c Config) numbered(ctx context.Context, db querier, schema string) (all []numbered, err error) {
	query := fmt.Sprintf(`
		SELECT COALESCE(json_agg(json_build_object(
		           'table', quote_ident(nspname) || '.' || quote_ident(t.relname), 'column', quote_ident(attname),
		           'sequence', quote_ident(nspname) || '.' || quote_ident(s.relname), 'outbox', t.relname = '%[3]soutbox')
		           ORDER BY t.relname), '[]')
		FROM pg_class AS t
		JOIN pg_namespace AS n ON n.oid = t.relnamespace
		JOIN pg_depend AS d ON d.refobjid = t.oid AND d.deptype IN ('a', 'i')
		     AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
		JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
		JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S' AND s.relnamespace = t.relnamespace
		WHERE nspname = '%[1]s' AND t.relname = ANY (%[2]s) AND has_schema_privilege(n.oid, 'USAGE')
		  AND has_column_privilege(t.oid, a.attnum, 'SELECT') AND has_table_privilege(s.oid, 'SELECT')
		  AND (t.relname <> '%[3]soutbox' OR has_table_privilege(
		           (SELECT b.oid FROM pg_class AS b WHERE b.relnamespace = n.oid AND b.relname = '%[3]sblocked_keys'), 'SELECT'))`,
		strings.ReplaceAll(schema, "'", "''"), c.names(), c.Prefix)
	var text string
	if err := db.QueryRowContext(ctx, query).Scan(&text); err != nil {
		return nil, fmt.Errorf("sequences: %w", err)
	}
	return all, json.Unmarshal([]byte(text), &all)
}
