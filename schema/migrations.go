package schema

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed postgres/[0-9]*.sql sqlite/[0-9]*.sql
var files embed.FS

// migration is one numbered step. A step is never edited after its release. Each later
// change is a new step.
type migration struct {
	version int
	name    string
	text    string

	// compatibleFrom is the oldest version of the code that works with the tables after this step.
	// By default, older code cannot use the tables after a step. If older code can still use them,
	// the step declares this in a separate line:
	//
	//	-- compatible_from: 1
	compatibleFrom int
}

var compatibleFrom = regexp.MustCompile(`(?m)^-- compatible_from: ([1-9][0-9]*)$`)

// migrations returns the steps of a dialect in their order. All callers get the same
// slice, so they must not change it. An unknown dialect has no steps.
func migrations(dialect Dialect) []migration {
	switch dialect {
	case PostgreSQL:
		return postgresSteps()
	case SQLite:
		return sqliteSteps()
	default:
		return nil
	}
}

// Each New of this library validates a Config, and needs the steps for this. So they are
// read only once.
var (
	postgresSteps = sync.OnceValue(func() []migration { return readMigrations(PostgreSQL) })
	sqliteSteps   = sync.OnceValue(func() []migration { return readMigrations(SQLite) })
)

// readMigrations reads the steps of a dialect. It panics if a file is invalid, because
// the files are part of the binary, and an invalid file is a mistake in this package.
func readMigrations(dialect Dialect) []migration {
	entries, err := fs.ReadDir(files, string(dialect))
	if err != nil {
		panic("schema: " + err.Error())
	}
	steps := make([]migration, 0, len(entries))
	for _, entry := range entries { // ReadDir sorts by name
		number, name, _ := strings.Cut(strings.TrimSuffix(entry.Name(), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(steps)+1 {
			panic("schema: migration out of sequence: " + entry.Name())
		}
		text, err := fs.ReadFile(files, string(dialect)+"/"+entry.Name())
		if err != nil {
			panic("schema: " + err.Error())
		}
		step := migration{version: version, name: name, text: string(text), compatibleFrom: version}
		if match := compatibleFrom.FindSubmatch(text); match != nil {
			step.compatibleFrom, _ = strconv.Atoi(string(match[1])) // the pattern matches only digits
		}
		if step.compatibleFrom > version {
			panic("schema: migration compatible from a later version: " + entry.Name())
		}
		steps = append(steps, step)
	}
	return steps
}

// Version returns the schema version that this code needs.
func Version() int { return len(migrations(PostgreSQL)) }

// SQL returns the text of all migrations, for your own migration tool. Apply the text
// in one transaction. The text also records the versions, so that [Check] and a later
// [Up] know which migrations were applied. If Config.Inbox or Config.Sent is ByDay, the
// text ends with the conversion of the table. You can also apply this last part to a
// plain table later.
func SQL(config Config) (string, error) {
	text, err := SQLFrom(config, 0)
	if err != nil {
		return "", err
	}
	return text + config.conversions(), nil
}

// SQLFrom returns the text of the migrations after the given version. Use it if your
// own migration tool has applied [SQL] of an earlier release. Apply the text in one
// transaction. Its statements fail if the tables do not have the given version. If the
// given version is the latest one, the text is "". If this code does not know the given
// version, SQLFrom returns an error.
func SQLFrom(config Config, version int) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	if version < 0 || version > Version() {
		return "", fmt.Errorf("schema: version %d is unknown: this code knows versions 0 to %d", version, Version())
	}
	config = config.WithDefaults()
	var b strings.Builder
	if version == 0 {
		b.WriteString(config.expand(createVersions) + ";\n")
	}
	for _, m := range migrations(config.Dialect)[version:] {
		fmt.Fprintf(&b, "\n-- %04d %s\n\n%s\n%s;\n", m.version, m.name, config.expand(m.text), config.record(m))
	}
	return b.String(), nil
}

const createVersions = `CREATE TABLE IF NOT EXISTS {migrations} (version integer PRIMARY KEY, compatible_from integer NOT NULL)`

// record returns the statement that records a step. The statement fails if the step was
// applied before (because of the primary key), or if the previous step was not applied
// (because compatible_from would be NULL).
func (c Config) record(m migration) string {
	table, from := c.Table("migrations"), strconv.Itoa(m.compatibleFrom)
	if m.version > 1 {
		from = fmt.Sprintf("(SELECT %s FROM %s WHERE version = %d)", from, table, m.version-1)
	}
	return fmt.Sprintf(`INSERT INTO %s (version, compatible_from) VALUES (%d, %s)`, table, m.version, from)
}

// versions contains the recorded versions of the tables in a database.
type versions struct {
	version        int // 0 if no migration was applied
	compatibleFrom int // oldest version of the code that can use the tables
}

func (c Config) current(ctx context.Context, q querier) (v versions, err error) {
	err = q.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0), COALESCE(MAX(compatible_from), 0) FROM "+c.Table("migrations")).
		Scan(&v.version, &v.compatibleFrom)
	if err != nil {
		return versions{}, fmt.Errorf("read %s: %w", c.Table("migrations"), err)
	}
	return v, nil
}

// compatible reports whether this code can use the tables. It assumes that the tables are
// not older than this code.
func (v versions) compatible() bool { return v.compatibleFrom <= Version() }

func (v versions) newerError() error {
	return fmt.Errorf("%w: they have version %d, which needs code of version %d or later, but this code has version %d: "+
		"deploy the newer code, or restore a backup from before the migration", ErrNewer, v.version, v.compatibleFrom, Version())
}
