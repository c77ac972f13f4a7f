package kit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// The tests of a package run in a process of their own. If each process created its
// databases, this would take a tenth of the CPU time of make test. So a process that
// ends leaves its databases, without the rows of its tests, to the processes that still
// run. Each process that uses the server shares a lock with the others. A process that
// gets the lock alone at its end is the last one, and drops all databases.
//
// The name of a database says its state. ALTER DATABASE ... RENAME succeeds for one
// process only, and so this process gets the database. If a process dies, its databases
// keep their names, and no other process takes them.
const (
	usedPrefix  = "once_test"  // a process uses the database
	emptyPrefix = "once_empty" // left to other processes, without tables
)

// tablesPrefix returns the prefix of a database that is left to other processes, with
// tables. It differs between migrations, and between directories with a copy of the code.
var tablesPrefix = sync.OnceValues(func() (string, error) {
	text, err := schema.SQL(schema.Config{})
	_, file, _, _ := runtime.Caller(0)
	sum := sha256.Sum256([]byte(file + text))
	return fmt.Sprintf("once_tables_%x", sum[:4]), err
})

// ours is a regular expression for the names that this package gives to databases.
const ours = `^once_(test|empty|tables_[0-9a-f]{8})` + uniquePart

// uniquePart is a regular expression for what uniqueName adds to the prefix.
const uniquePart = `_[0-9]+_[0-9a-f]+_[0-9]+_[0-9]+$`

// lockNumber is the number of the lock. It was chosen at random.
const lockNumber = 6130752291744

// facts is the comment of a database that is left to other processes.
type facts struct {
	Fresh       string            `json:"fresh"`                 // see postgres.fresh
	Fingerprint string            `json:"fingerprint,omitempty"` // see prepared
	Rows        map[string]string `json:"rows,omitempty"`        // see prepared
}

// OwnDatabases is an environment variable. If it is set, this process takes no database
// of others, and leaves them none. It is for tests that run with a changed schema.Up.
const OwnDatabases = "ONCE_TEST_OWN_DATABASES"

func alone() bool { return os.Getenv(OwnDatabases) != "" }

// enter takes the lock that the processes share. If the last one of earlier processes
// drops the databases at this moment, enter waits for it.
func (p *postgres) enter(ctx context.Context) (err error) {
	if p.present, err = p.admin.Conn(ctx); err != nil {
		return err
	}
	if _, err = p.present.ExecContext(ctx, "SELECT pg_advisory_lock_shared($1)", lockNumber); err != nil {
		return errors.Join(err, p.present.Close())
	}
	return nil
}

// claim takes a database that another process has left. If it finds no such database, it
// returns one whose name is empty.
func (p *postgres) claim(ctx context.Context, prefix string) (prepared, error) {
	if alone() {
		return prepared{}, nil
	}
	left, err := p.databases(ctx, "^"+prefix+uniquePart)
	if err != nil {
		return prepared{}, err
	}
	for name, comment := range left {
		var known facts
		if err := json.Unmarshal([]byte(comment), &known); err != nil {
			return prepared{}, fmt.Errorf("the comment of database %s: %w", name, err)
		}
		db := prepared{name: uniqueName(usedPrefix, "_"), fingerprint: known.Fingerprint, rows: known.Rows}
		switch err := p.rename(ctx, name, db.name); {
		case dialect.State(err) == missing: // another process was faster
			continue
		case err != nil:
			return prepared{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fresh = known.Fresh
		return db, nil
	}
	return prepared{}, nil
}

func (p *postgres) leave(ctx context.Context, db prepared, prefix string) error {
	comment, err := json.Marshal(facts{Fresh: p.fresh, Fingerprint: db.fingerprint, Rows: db.rows})
	if err != nil {
		return err
	}
	if _, err := p.admin.ExecContext(ctx, "COMMENT ON DATABASE "+db.name+" IS "+pq.QuoteLiteral(string(comment))); err != nil {
		return err
	}
	p.sessionsOf(db.name).end()
	if err := p.endOthers(ctx, db.name); err != nil {
		return err
	}
	return p.rename(ctx, db.name, uniqueName(prefix, "_"))
}

func (p *postgres) rename(ctx context.Context, from, to string) error {
	_, err := p.admin.ExecContext(ctx, "ALTER DATABASE "+from+" RENAME TO "+to)
	return err
}

// databases returns the comments of the databases whose name matches a regular
// expression, and which this user may rename and drop.
func (p *postgres) databases(ctx context.Context, pattern string) (comments map[string]string, err error) {
	rows, err := p.admin.QueryContext(ctx, `SELECT datname, coalesce(shobj_description(oid, 'pg_database'), '')
		FROM pg_database WHERE datname ~ $1 AND pg_has_role(datdba, 'MEMBER')`, pattern)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	comments = map[string]string{}
	for rows.Next() {
		var name, comment string
		if err := rows.Scan(&name, &comment); err != nil {
			return nil, err
		}
		comments[name] = comment
	}
	return comments, rows.Err()
}

// close leaves the databases to other processes. If this process is the last one, it
// drops them, also those of processes that have died. It needs no mutex, because no test runs any more.
func (p *postgres) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), whenBusy)
	defer cancel()
	return errors.Join(p.release(ctx), p.dropIfLast(ctx), p.present.Close(), p.admin.Close())
}

// release leaves the databases of this process to other processes. If no other process
// can use them, it drops them.
func (p *postgres) release(ctx context.Context) error {
	if alone() {
		names := p.free
		for _, db := range p.prepared {
			names = append(names, db.name)
		}
		return p.dropAll(ctx, names)
	}
	var errs []error
	for _, name := range p.free {
		errs = append(errs, p.leave(ctx, prepared{name: name}, emptyPrefix))
	}
	for _, db := range p.prepared {
		prefix, err := tablesPrefix()
		errs = append(errs, err, p.leave(ctx, db, prefix))
	}
	return errors.Join(errs...)
}

func (p *postgres) dropIfLast(ctx context.Context) error {
	if _, err := p.present.ExecContext(ctx, "SELECT pg_advisory_unlock_shared($1)", lockNumber); err != nil {
		return err
	}
	var last bool
	if err := p.present.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", lockNumber).Scan(&last); err != nil || !last {
		return err
	}
	left, err := p.databases(ctx, ours)
	return errors.Join(err, p.dropAll(ctx, slices.Collect(maps.Keys(left))))
}

// dropAll drops databases at the same time. A drop needs a checkpoint of the server, and
// drops that run at the same time can share a checkpoint.
func (p *postgres) dropAll(ctx context.Context, names []string) error {
	errs := make([]error, len(names))
	var drops sync.WaitGroup
	for i, name := range names {
		drops.Go(func() { errs[i] = p.drop(ctx, name) })
	}
	drops.Wait()
	return errors.Join(errs...)
}
