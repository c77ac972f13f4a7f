package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/watermill-once/once/schema"
)

// findPgbench looks for pgbench in PATH, and then in the directories of PostgreSQL's
// packages.
func findPgbench() (path string, found bool) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, true
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench") // an error would mean that the pattern is invalid
	if len(installed) == 0 {
		return "", false
	}
	return slices.Max(installed), true
}

// pgbenchScript runs the statements that once.Consumer runs for a message, each in its
// own round trip. Its ids increase, like the ids of messages.
const pgbenchScript = `
\set n :n + 1
BEGIN;
INSERT INTO once_inbox (message_id, consumer, digest)
	VALUES (lpad((:n * 100 + :client_id)::text, 36, '0'), 'bench', sha256('payload'))
	ON CONFLICT (message_id, consumer) DO NOTHING;
INSERT INTO orders (customer, total) VALUES ('a customer''s name', 4200);
COMMIT;
`

var (
	pgbenchCount = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	pgbenchRate  = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`)
)

// pgbench measures how many transactions per second the database commits with the statements of
// pgbenchScript.
func (b *bench) pgbench(ctx context.Context, program string) (_ float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return 0, err
	}
	defer closing(db, &err)
	if err := schema.Up(ctx, db.DB, schema.Config{}); err != nil {
		return 0, err
	}
	for _, statement := range []string{createOrders, `CHECKPOINT`} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	script, err := os.CreateTemp("", "once-bench-*.sql")
	if err != nil {
		return 0, err
	}
	defer os.Remove(script.Name())
	_, err = script.WriteString(pgbenchScript)
	if err := errors.Join(err, script.Close()); err != nil {
		return 0, err
	}
	seconds := max(1, int(b.producing/time.Second))
	command := exec.CommandContext(ctx, program, "--no-vacuum", "--file", script.Name(), "--define", "n=0",
		"--client", strconv.Itoa(inFlight), "--jobs", "2", "--time", strconv.Itoa(seconds), db.dsn)
	out, err := command.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	count, tps := pgbenchCount.FindSubmatch(out), pgbenchRate.FindSubmatch(out)
	if count == nil || tps == nil {
		return 0, fmt.Errorf("the output of pgbench contains no number of transactions: %s", out)
	}
	var orders, inbox int
	err = db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM once_inbox)`).Scan(&orders, &inbox)
	if err != nil {
		return 0, err
	}
	if done, _ := strconv.Atoi(string(count[1])); orders != done || inbox != done {
		return 0, fmt.Errorf("pgbench did %d transactions, but there are %d orders and %d ids", done, orders, inbox)
	}
	return strconv.ParseFloat(string(tps[1]), 64)
}
