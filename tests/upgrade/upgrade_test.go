package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

// next is the version of a migration that no release has.
var next = schema.Version() + 1

// build builds the service with additional migrations, each with one text for
// both dialects.
func build(t *testing.T, migrations ...string) (path string) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	kit.OK(t, err)
	replaced := map[string]string{}
	for i, text := range migrations {
		name := fmt.Sprintf("%04d_for_a_test.sql", next+i)
		kit.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		for _, dialect := range []schema.Dialect{schema.PostgreSQL, schema.SQLite} {
			replaced[filepath.Join(root, "schema", string(dialect), name)] = filepath.Join(dir, name)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	kit.OK(t, err)
	file := filepath.Join(dir, "overlay.json")
	kit.OK(t, os.WriteFile(file, overlay, 0o600))
	path = filepath.Join(dir, "service")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-overlay", file, "-o", path, "./service")
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return path
}

// release is a build with the database of its deployment.
type release struct {
	*testing.T

	path string
	db   kit.Database
}

func (r release) run(command string, argument int) (stdout, stderr string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, r.path, r.db.Dialect, r.db.DSN, command, strconv.Itoa(argument))
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && errs.Len() == 0 {
		r.Errorf("%s: %v", command, err)
	}
	return out.String(), strings.TrimSpace(errs.String())
}

// mustRun runs a command that must succeed.
func (r release) mustRun(command string, argument int) {
	r.Helper()
	if _, stderr := r.run(command, argument); stderr != "" {
		r.Errorf("%s: %s", command, stderr)
	}
}

// mustFail runs a command that must fail with the given error message.
func (r release) mustFail(command, message string) {
	r.Helper()
	if _, stderr := r.run(command, 0); stderr != message {
		r.Errorf("%s: it says\n%s\nnot\n%s", command, stderr, message)
	}
}

func (r release) exec(query string) {
	r.Helper()
	kit.Exec(r, r.db, query)
}

func newer(tables, from, code int) string {
	return fmt.Sprintf("the tables are newer than this code: they have version %d, which needs code of version %d or later, "+
		"but this code has version %d: deploy the newer code, or restore a backup from before the migration", tables, from, code)
}

// A release is deployed while the previous one runs, is rolled back without a change of the tables,
// and is deployed again. If a migration is not compatible with older code, this code refuses the
// migrated tables before it does anything.
func TestDeployAndRollBack(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	// The new column has a default, so that older statements continue to work.
	additive := fmt.Sprintf("-- compatible_from: %d\nALTER TABLE {outbox} ADD COLUMN later text DEFAULT 'x' NOT NULL;", schema.Version())
	const breaking = `ALTER TABLE {inbox} RENAME COLUMN tenant TO for_whom;`
	oldBuild, newBuild, lastBuild := build(t), build(t, additive), build(t, additive, breaking)
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		older, newest, last := release{t, oldBuild, db}, release{t, newBuild, db}, release{t, lastBuild, db}
		older.mustRun("up", 0)
		older.exec(`CREATE TABLE effects (message_id text)`)
		newest.mustFail("check", fmt.Sprintf("schema: the tables are older than this code: they have version %d, this code needs %d: "+
			"run schema.Up, or apply schema.SQLFrom(config, %d)", next-1, next, next-1))

		done := make(chan struct{})
		go func() { // the tables are migrated while it works
			defer close(done)
			older.mustRun("work", 30)
		}()
		newest.mustRun("up", 0)
		newest.mustRun("check", 0)
		newest.mustRun("work", 5)
		<-done

		for _, command := range []string{"check", "up", "work"} { // after the rollback of the release
			older.mustRun(command, 5)
		}
		newest.mustRun("work", 5)

		last.mustRun("up", 0)
		for code, r := range map[int]release{next - 1: older, next: newest} {
			r.mustFail("check", "schema: "+newer(next+1, next+1, code))
			r.mustFail("up", "schema: up: "+newer(next+1, next+1, code))
		}
		var effects, pending int
		query := `SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM once_outbox)`
		kit.OK(t, db.QueryRowContext(t.Context(), query).Scan(&effects, &pending))
		if effects != 45 || pending != 0 {
			t.Errorf("%d effects of 45 events, %d events are left", effects, pending)
		}
	})
}

// A service with its own migration tool applies the same steps, and each step accepts only tables
// of the version for which it was made.
func TestSQLFromMigratesTables(t *testing.T) {
	kit.Long(t) // it builds the service twice
	t.Parallel()
	migration := fmt.Sprintf("-- compatible_from: %d\nCREATE TABLE {index later} (x integer);", schema.Version())
	path, withTwo := build(t, migration), build(t, migration, `CREATE TABLE {index last} (x integer);`)
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		r, two := release{t, path, db}, release{t, withTwo, db}
		apply := func(text string) error {
			tx := kit.Begin(t, db)
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(t.Context(), text); err != nil {
				return err
			}
			return tx.Commit()
		}
		text, stderr := r.run("sql-from", next-1)
		tooFar, _ := two.run("sql-from", next)
		if text == "" || tooFar == "" || stderr != "" {
			t.Fatalf("%q, %s", text, stderr)
		}
		if err := apply(tooFar); err == nil {
			t.Error("a step was skipped")
		}
		kit.OK(t, apply(text))
		r.mustRun("check", 0)
		if err := schema.Check(t.Context(), db.DB, config); err != nil {
			t.Errorf("the code without the migration: %v", err)
		}
		if err := apply(text); err == nil {
			t.Error("a step was applied twice")
		}
		kit.Check(t, apply(tooFar))
		two.mustRun("check", 0)
	})
}
