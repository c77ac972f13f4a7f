package kit

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/lib/pq"
)

const (
	// tooManyConnections is the error code of a server that has no connection left.
	tooManyConnections = "53300"

	// missing is the error code for a database that does not exist.
	missing = "3D000"
)

// postgres creates and drops databases on a server.
type postgres struct {
	dsn   string
	admin *sql.DB

	// present is a session that has a lock while this process uses the server's databases.
	present *sql.Conn

	mu       sync.Mutex
	fresh    string   // the state of a new database
	free     []string // empty databases
	prepared []prepared
	sessions map[string]*sessions // by the name of the database
	kept     int                  // sessions of all databases
}

func newPostgres(ctx context.Context, dsn string) (*postgres, error) {
	admin, err := openPostgres(dsn, nil)
	if err != nil {
		return nil, err
	}
	p := &postgres{dsn: dsn, admin: admin, sessions: map[string]*sessions{}}
	if err := p.enter(ctx); err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	return p, nil
}

// create creates a database from template0. template1 may have connections, which make
// the copy fail. template0 accepts no connections. Several tests may create databases
// at the same time, so create repeats the statement while the server is busy.
func (p *postgres) create(ctx context.Context, name, options string) error {
	ctx, cancel := context.WithTimeout(ctx, whenBusy)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"+options)
		if !busy(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (p *postgres) drop(ctx context.Context, name string) error {
	p.sessionsOf(name).end()
	_, err := p.admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

func busy(err error) bool {
	var refused *pq.Error
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code {
	case "55006", // the template is in use
		tooManyConnections,
		"57P03": // the server is starting
		return true
	}
	return false
}

// CREATE DATABASE copies about 900 files, and DROP DATABASE writes a checkpoint of the
// whole server. So a database that a test has used is emptied and given to the next test.

// state is a query for everything that a test can change in a database, apart from the
// tables and other objects that are dropped together with their schema. It includes the
// names, owners and rights of the schemas. A database is dropped if its state differs
// from the state of a new database.
const state = `SELECT concat_ws('; ',
	(SELECT string_agg(concat_ws(' ', nspname, nspowner::regrole, nspacl::text), ', ' ORDER BY nspname)
		FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'),
	(SELECT concat_ws(' ', datdba::regrole, datacl::text, datconnlimit, datallowconn) FROM pg_database WHERE datname = current_database()),
	(SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())),
	(SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_extension),
	(SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_class WHERE oid >= 16384),
	(SELECT count(*) FROM pg_proc WHERE oid >= 16384), (SELECT count(*) FROM pg_type WHERE oid >= 16384))`

// empty is a statement that drops all schemas, and creates the schema public as in a
// new database.
const empty = `DO $$
	DECLARE name text;
	BEGIN
		FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
			EXECUTE format('DROP SCHEMA %I CASCADE', name);
		END LOOP;
		CREATE SCHEMA public;
		IF current_setting('server_version_num')::int >= 150000 THEN
			ALTER SCHEMA public OWNER TO pg_database_owner;
			GRANT USAGE ON SCHEMA public TO PUBLIC;
		ELSE
			GRANT ALL ON SCHEMA public TO PUBLIC;
		END IF;
	END $$`

var errChanged = errors.New("the database is not like a new one")

// take returns an empty database. A test of this process or of an earlier one has used
// it, or it is new.
func (p *postgres) take(ctx context.Context) (name string, err error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		name, p.free = p.free[n-1], p.free[:n-1]
		p.mu.Unlock()
		return name, nil
	}
	p.mu.Unlock()
	if db, err := p.claim(ctx, emptyPrefix); err != nil || db.name != "" {
		return db.name, err
	}
	p.mu.Lock()
	known := p.fresh != ""
	p.mu.Unlock()
	name = uniqueName(usedPrefix, "_")
	if err := p.create(ctx, name, ""); err != nil || known {
		return name, err
	}
	return name, p.withConnection(name, func(db *sql.DB) error {
		fresh, err := stateOf(ctx, db)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fresh = fresh
		return err
	})
}

// give empties a database, so that the next call of take can return it. If the database
// cannot be emptied, give drops it.
func (p *postgres) give(ctx context.Context, name string) error {
	if err := p.reset(ctx, name); err != nil {
		return p.drop(ctx, name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, name)
	return nil
}

func (p *postgres) reset(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.endOthers(ctx, name); err != nil {
		return err
	}
	return p.withConnection(name, func(db *sql.DB) error {
		if _, err := db.ExecContext(ctx, empty); err != nil {
			return err
		}
		now, err := stateOf(ctx, db)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err == nil && now != p.fresh {
			err = errChanged
		}
		return err
	})
}

// endOthers ends the sessions of a database, apart from those that are kept.
func (p *postgres) endOthers(ctx context.Context, name string) error {
	kept := p.sessionsOf(name).pids()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var n int
		err := p.admin.QueryRowContext(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = $1 AND backend_type = 'client backend' AND pid <> ALL ($2)`, name, kept).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *postgres) sessionsOf(name string) *sessions {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[name]
	if s == nil {
		s = &sessions{server: p}
		p.sessions[name] = s
	}
	return s
}

func stateOf(ctx context.Context, db *sql.DB) (string, error) {
	var text string
	err := db.QueryRowContext(ctx, state).Scan(&text)
	return text, err
}
