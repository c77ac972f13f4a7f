package roles

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

// password is the password of every user, if the server requires one.
const password = "of a test"

// parts contains the parts of a service that have a role of their own.
var parts = []string{"producer", "forwarder", "consumer", "operator", "watcher"}

// tables configures tables that have a prefix, in a schema that is not in the search path.
var tables = schema.Config{Schema: "app", Prefix: "mine_"}

// world is a database with tables and roles, and a login for each role.
type world struct {
	*testing.T

	admin  *sql.DB
	dsn    string
	prefix string // prefix of the names of the roles, because all databases of the server share them
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := kit.Postgres(t)
	w := &world{T: t, admin: db.DB, dsn: db.DSN}
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT current_database() || '_'`).Scan(&w.prefix))
	logins := []string{w.login("owner")}
	roles := []string{}
	for _, part := range parts {
		roles = append(roles, w.prefix+part)
		logins = append(logins, w.login(part))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		kit.Check(t, kit.Err(db.ExecContext(ctx, `DROP SCHEMA IF EXISTS app CASCADE`)))
		for _, role := range append(roles, logins...) {
			if _, err := db.ExecContext(ctx, fmt.Sprintf(`
				DO $$ BEGIN IF to_regrole('%[1]s') IS NOT NULL THEN DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s; END IF; END $$`,
				role)); err != nil {
				t.Errorf("role %s is left: %v", role, err)
			}
		}
	})

	// The owner is not a superuser, and has only these two rights on the
	// schema.
	w.exec(w.admin, fmt.Sprintf(`
		CREATE SCHEMA app; CREATE ROLE %[1]s LOGIN CREATEROLE PASSWORD '%[2]s'; GRANT USAGE, CREATE ON SCHEMA app TO %[1]s WITH GRANT OPTION`,
		w.login("owner"), password))
	owner := w.open(new(recorder), "owner")
	kit.OK(t, schema.Up(t.Context(), owner, tables))
	text, err := schema.Roles(tables, w.prefix)
	kit.OK(t, err)
	for range 2 {
		w.exec(owner, text)
	}
	for _, part := range parts {
		w.exec(owner, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE %s`, w.login(part), password, w.prefix+part))
	}
	return w
}

// login returns the name of a user with the role of a part.
func (w *world) login(part string) string { return w.prefix + "app_" + part }

// open returns a pool whose connections log in as the user of the given part of the
// service.
func (w *world) open(r *recorder, part string) *sql.DB {
	w.Helper()
	config, err := pq.NewConfig(w.dsn)
	if err != nil {
		w.Fatal("the DSN cannot be read")
	}
	config.User, config.Password = w.login(part), password
	db, err := r.open(config)
	kit.OK(w, err)
	w.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(6)
	return db
}

func (w *world) exec(db *sql.DB, query string) {
	w.Helper()
	if _, err := db.ExecContext(w.Context(), query); err != nil {
		w.Fatalf("%v: %.200s", err, query)
	}
}

// number returns the result of a query, run as the administrator.
func (w *world) number(query string) int {
	w.Helper()
	var n int
	if err := w.admin.QueryRowContext(w.Context(), query).Scan(&n); err != nil {
		w.Fatalf("%v: %s", err, query)
	}
	return n
}
