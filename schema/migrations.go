package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed postgres/[0-9]*.sql sqlite/[0-9]*.sql
var files embed.FS

// migration is one numbered step. Steps are never edited once released: a
// change is a new step.
type migration struct {
	version int
	name    string
	text    string
}

// migrations returns the steps of a dialect in order. The files are part of
// the binary, so anything wrong with them is a mistake of ours, not an error.
func migrations(dialect Dialect) []migration {
	entries, err := fs.ReadDir(files, string(dialect))
	if err != nil {
		return nil
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
		steps = append(steps, migration{version: version, name: name, text: string(text)})
	}
	return steps
}

// Version is the schema version that this code works with.
func Version() int { return len(migrations(PostgreSQL)) }

// SQL returns the text of all migrations for people who run their own
// migration tool: apply it in one transaction. It records its versions, so
// that [Check] and a later [Up] know what is there. What it ends with if
// Config.Inbox is ByDay can be applied to a plain inbox at any later time.
func SQL(config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	config = config.WithDefaults()
	var b strings.Builder
	b.WriteString(config.expand(createVersions) + ";\n")
	for _, m := range migrations(config.Dialect) {
		fmt.Fprintf(&b, "\n-- %04d %s\n\n%s\n%s;\n", m.version, m.name, config.expand(m.text), config.record(m.version))
	}
	if config.Inbox == ByDay {
		b.WriteString("\n-- The inbox by day\n\n" + config.expand(byDay))
	}
	return b.String(), nil
}

const createVersions = `CREATE TABLE IF NOT EXISTS {migrations} (version integer PRIMARY KEY)`

func (c Config) record(version int) string {
	return fmt.Sprintf(`INSERT INTO %s (version) VALUES (%d)`, c.Table("migrations"), version)
}
