package schema

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/watermill-once/once/internal/usercode"
)

var (
	// ErrMissing means that the database does not contain the tables.
	ErrMissing = errors.New("the tables are missing")

	// ErrOutdated means that the tables lack migrations that this code needs.
	ErrOutdated = errors.New("the tables are older than this code")

	// ErrNewer means that a later version of this module has migrated the tables, and that this
	// code cannot use them.
	ErrNewer = errors.New("the tables are newer than this code")

	// ErrLayout means that the inbox or the sent log does not have the layout in
	// Config.Inbox or Config.Sent.
	ErrLayout = errors.New("the table has another layout")
)

// LayoutError wraps [ErrLayout]. It says which table has which layout.
type LayoutError struct {
	// Field is the field of Config that the table contradicts: "Inbox" or "Sent".
	Field string

	// Has is the layout of the table.
	Has Layout

	text string
}

// Error returns [ErrLayout]'s text, the name of the table, and the remedy.
func (e *LayoutError) Error() string { return ErrLayout.Error() + ": " + e.text }

// Unwrap returns [ErrLayout].
func (e *LayoutError) Unwrap() error { return ErrLayout }

// validateWith also returns an error if db is nil.
func (c Config) validateWith(db querier) error {
	if pool, ok := db.(*sql.DB); db == nil || ok && pool == nil {
		return errors.Join(errors.New("schema: db is nil"), c.Validate())
	}
	return c.Validate()
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Check returns nil if this code can use the tables. Otherwise its error says what to
// do, and wraps [ErrMissing], [ErrAmbiguous], [ErrOutdated], [ErrNewer], [ErrLayout],
// [ErrRowSecurity], [ErrSequence], [ErrDialect], [ErrEncoding] or the database's own
// error. For "permission denied" see docs/roles.md.
// db is a *sql.DB, a *sql.Conn or a *sql.Tx. Check changes nothing.
//
// Check accepts tables of a later version if their migration declares that code of this
// version can use them, see docs/upgrading.md.
func Check(ctx context.Context, db querier, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	if err := config.checkDatabase(ctx, db); err != nil {
		return fmt.Errorf("schema: check: %w", err)
	}
	found, err := config.find(ctx, db)
	if err != nil {
		return fmt.Errorf("schema: check: %w", usercode.HideDSN(err))
	}
	if err := config.checkFound(found); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	there, err := config.current(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	case there.version < Version():
		return fmt.Errorf("schema: %w: they have version %d, this code needs %d: run schema.Up, or apply schema.SQLFrom(config, %d)",
			ErrOutdated, there.version, Version(), there.version)
	case !there.compatible():
		return fmt.Errorf("schema: %w", there.newerError())
	}
	for _, check := range []func(context.Context, querier, string) error{config.checkRowSecurity, config.checkSequences} {
		switch err := check(ctx, db, found.name()); {
		case errors.Is(err, ErrRowSecurity), errors.Is(err, ErrSequence):
			return fmt.Errorf("schema: %w", err)
		case err != nil:
			return fmt.Errorf("schema: check: %w", usercode.HideDSN(err))
		}
	}
	// This check is the last one, because a forwarder ignores its error.
	switch err := config.checkLayouts(ctx, db); {
	case errors.Is(err, ErrLayout):
		return fmt.Errorf("schema: %w", err)
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	}
	return nil
}

// ErrAmbiguous means that the search path leads to more than one schema: several of its
// schemas contain the tables, or [Up] would create the tables in another schema than the
// one that contains them.
var ErrAmbiguous = errors.New("it is ambiguous which schema contains the tables")

// Find returns config with the name of the schema that contains the tables. If
// Config.Schema is empty, Find looks into all schemas of the connection's search path. If
// it finds no tables, the error wraps [ErrMissing]. If several of these schemas contain
// tables, the error wraps [ErrAmbiguous]. For SQLite, which has no schemas, Find returns
// config. db is a *sql.DB, a *sql.Conn or a *sql.Tx.
func Find(ctx context.Context, db querier, config Config) (Config, error) {
	if err := config.validateWith(db); err != nil {
		return config, err
	}
	config = config.WithDefaults()
	found, err := config.find(ctx, db)
	if err != nil {
		return config, fmt.Errorf("schema: find the tables: %w", config.explain(ctx, db, err))
	}
	if err := config.checkFound(found); err != nil {
		return config, fmt.Errorf("schema: %w", err)
	}
	config.Schema = found.name()
	return config, nil
}

type place struct {
	schemas  []string // schemas of the search path that contain at least one of the tables, in their order
	first    string   // schema in which CREATE TABLE creates tables
	complete bool     // the table of the migrations was found
}

func (p place) name() string {
	if len(p.schemas) == 0 {
		return ""
	}
	return p.schemas[0]
}

// find searches the database's catalog, so that a missing table cannot be confused with another
// error. It looks for every table: a single table in an earlier schema of the search path, even a
// temporary one, hides the table of a complete set. All names were validated, so they contain no
// quotes.
func (c Config) find(ctx context.Context, db querier) (p place, err error) {
	if c.Dialect == SQLite {
		query := fmt.Sprintf(`SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '%smigrations')`, c.Prefix)
		err := db.QueryRowContext(ctx, query).Scan(&p.complete)
		return p, err
	}
	path := "unnest(current_schemas(true))"
	if c.Schema != "" {
		path = "unnest(ARRAY['" + c.Schema + "'::name])"
	}
	query := fmt.Sprintf(`WITH found AS (
		SELECT path.name, min(path.n) AS n, bool_or(t.relname = '%smigrations') AS complete
		FROM %s WITH ORDINALITY AS path(name, n)
		JOIN pg_namespace AS s ON s.nspname = path.name
		JOIN pg_class AS t ON t.relnamespace = s.oid
		WHERE t.relname = ANY (%s) AND t.relkind IN ('r', 'p', 'v', 'm', 'f') GROUP BY path.name)
		SELECT COALESCE(current_schema(), ''), COALESCE(json_agg(name ORDER BY n), '[]'), COALESCE(bool_or(complete), false) FROM found`,
		c.Prefix, path, c.names())
	var schemas string
	if err := db.QueryRowContext(ctx, query).Scan(&p.first, &schemas, &p.complete); err != nil {
		return p, err
	}
	return p, json.Unmarshal([]byte(schemas), &p.schemas)
}

func (c Config) checkFound(p place) error {
	switch {
	case len(p.schemas) > 1:
		return c.ambiguousError(p)
	case !p.complete:
		return fmt.Errorf("%w: no table %s: run schema.Up, or apply schema.SQL", ErrMissing, c.Table("migrations"))
	}
	return nil
}

// checkPlace returns an error if Up would create tables in another schema than the one that has
// tables already.
func (c Config) checkPlace(p place) error {
	switch {
	case len(p.schemas) > 1:
		return c.ambiguousError(p)
	case c.Schema == "" && len(p.schemas) == 1 && p.schemas[0] != p.first:
		return fmt.Errorf("%w: schema %q contains tables with the prefix %q, but %q is now the first schema of the search path: "+
			"to use the existing tables, set Config.Schema to %[2]q in all parts, or remove %[4]q from the search path "+
			"(options=-csearch_path=%[5]s in the data source name); for a second, empty set of tables, set Config.Schema to %[4]q",
			ErrAmbiguous, p.schemas[0], c.Prefix, p.first, p.schemas[0])
	}
	return nil
}

func (c Config) ambiguousError(p place) error {
	names := make([]string, len(p.schemas))
	for i, name := range p.schemas {
		if strings.HasPrefix(name, "pg_temp_") {
			return fmt.Errorf("%w: temporary tables of this session with the prefix %q hide the tables in schema %q: drop them",
				ErrAmbiguous, c.Prefix, p.schemas[(i+1)%len(p.schemas)])
		}
		names[i] = fmt.Sprintf("%q", name)
	}
	return fmt.Errorf("%w: the schemas %s of the search path contain tables with the prefix %q: find out which of them has your messages, "+
		"and set Config.Schema to it in all parts, or leave only this schema in the search path "+
		"(options=-csearch_path=%s in the data source name)",
		ErrAmbiguous, strings.Join(names, " and "), c.Prefix, p.schemas[len(p.schemas)-1])
}

func (c Config) names() string {
	return "'{" + c.Prefix + strings.Join(tableNames(), ","+c.Prefix) + "}'::name[]"
}

// refuseSecondSet, for other migration tools, fails if the statements after it would create a
// second set of tables. It is one statement without a function, because some tools split their text
// at each semicolon. PostgreSQL's error quotes the text that it cannot cast to a number.
const refuseSecondSet = `SELECT CAST('the tables are in schema ' || nspname || ', which is not the first schema of the search path: ' ||
    'set the schema in schema.Config or with --schema' AS integer) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = ANY (%s) AND nspname = ANY (current_schemas(true)) AND nspname <> current_schema() LIMIT 1`

var createTable = regexp.MustCompile(`CREATE TABLE (?:IF NOT EXISTS )?\{([a-z_]+)\}`)

var tableNames = sync.OnceValue(func() (names []string) {
	texts := []string{createVersions}
	for _, m := range migrations(PostgreSQL) {
		texts = append(texts, m.text)
	}
	for _, match := range createTable.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		names = append(names, match[1])
	}
	return names
})
