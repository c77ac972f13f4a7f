package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/spf13/cobra"
	"modernc.org/sqlite"

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/mover"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/schema"
)

const connectTimeout = 10 * time.Second

type database struct {
	*sql.DB

	tables schema.Config

	// Without the right to read payloads, lists leave out what the role watcher cannot read.
	withoutContent bool
}

func (d database) sqlite() bool { return d.tables.Dialect == schema.SQLite }

func (d database) table(name string) string { return d.tables.Table(name) }

// With create, opening a missing SQLite file creates it.
func (a *app) connector(create bool) (driver.Connector, schema.Dialect, error) {
	name := a.settings.dsn
	path, isSQLite := strings.CutPrefix(name, "sqlite:")
	switch {
	case name == "":
		return nil, "", usagef("no database: set ONCE_DSN or --dsn to postgres://user@host/name or sqlite:FILE")
	case strings.HasPrefix(name, "file:"):
		connector, err := sqlite.NewConnector(name)
		return connector, schema.SQLite, usercode.HideDSN(err)
	case isSQLite:
		query := "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
		if !create {
			query += "&mode=rw"
		}
		file := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: query}
		connector, err := sqlite.NewConnector(file.String())
		return connector, schema.SQLite, err
	case strings.HasPrefix(name, "postgres://"), strings.HasPrefix(name, "postgresql://"),
		strings.Contains(name, "=") && !strings.Contains(name, "://"):
		connector, err := pq.NewConnector(name)
		if err != nil {
			return nil, "", usagef("the database's address is invalid: %w", usercode.HideDSN(err))
		}
		return connector, schema.PostgreSQL, nil
	}
	return nil, "", usagef("the database's address (not shown, it may contain a password) must begin with postgres:// or sqlite:")
}

func (a *app) open(ctx context.Context, create bool) (database, error) {
	connector, dialect, err := a.connector(create)
	if err != nil {
		return database{}, err
	}
	tables, err := a.tables(dialect)
	if err != nil {
		return database{}, err
	}
	db := database{DB: sql.OpenDB(connector), tables: tables.WithDefaults()}
	db.SetMaxIdleConns(4)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		return database{}, errors.Join(connectError{err, dialect}, db.Close())
	}
	return db, nil
}

func (a *app) withDatabase(work func(ctx context.Context, db database, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		db, err := a.open(cmd.Context(), false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return work(cmd.Context(), db, args)
	}
}

// withTables checks the tables and the rights of the user before work.
func (a *app) withTables(work func(ctx context.Context, db database, args []string) error) func(*cobra.Command, []string) error {
	return a.withDatabase(func(ctx context.Context, db database, args []string) error {
		if err := schema.Check(ctx, db.DB, db.tables); err != nil {
			return fmt.Errorf("%w%s", err, remedy(err))
		}
		if err := db.findRights(ctx); err != nil {
			return err
		}
		if db.withoutContent {
			fmt.Fprintln(a.stderr, "once: this user may not read messages: lists leave out sizes, metadata and error texts (docs/roles.md)")
		}
		return work(ctx, db, args)
	})
}

func (d *database) findRights(ctx context.Context) error {
	if d.sqlite() {
		return nil
	}
	err := d.QueryRowContext(ctx, `
		SELECT NOT (has_column_privilege($1, 'payload', 'SELECT') AND has_column_privilege($2, 'envelope', 'SELECT'))`,
		d.table("outbox"), d.table("parked")).Scan(&d.withoutContent)
	if err != nil {
		return fmt.Errorf("rights of the user: %w", usercode.HideDSN(err))
	}
	return nil
}

func remedy(err error) string {
	if layout, ok := errors.AsType[*schema.LayoutError](err); ok {
		return layoutRemedy(*layout)
	}
	switch {
	case errors.Is(err, schema.ErrMissing):
		return " (run: once migrate up; or check --schema and --prefix)"
	case errors.Is(err, schema.ErrAmbiguous):
		return " (add --schema, or set ONCE_SCHEMA)"
	case errors.Is(err, schema.ErrOutdated):
		return " (run: once migrate up)"
	case errors.Is(err, schema.ErrNewer):
		return " (install a newer release of once)"
	}
	return ""
}

func layoutRemedy(e schema.LayoutError) string {
	switch {
	case e.Field == "Sent": // --sent accepts no other layout
		return " (run: once migrate up --sent by_day)"
	case e.Has == schema.ByDay:
		return " (add --inbox by_day, or set ONCE_INBOX=by_day)"
	}
	return " (leave out --inbox and ONCE_INBOX, or convert the inbox with once migrate up --inbox by_day)"
}

var userinfo = regexp.MustCompile(`//[^\s"/]*:[^\s"]*@`)

// hide removes the passwords in the settings, which the errors of drivers may quote.
func (a *app) hide(text string) string {
	for _, secret := range secrets(a.settings.dsn, a.settings.consumerDSN, a.settings.amqpURL, a.settings.managementURL) {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return userinfo.ReplaceAllString(text, "//***@")
}

// A shorter password than shortestSecret could be a part of other words.
const shortestSecret = 4

func secrets(addresses ...string) (all []string) {
	for _, address := range addresses {
		var found []string
		if parsed, err := url.Parse(address); err == nil {
			password, _ := parsed.User.Password()
			_, written, _ := strings.Cut(parsed.User.String(), ":")
			found = append(found, password, written, url.QueryEscape(password), parsed.Query().Get("password"))
		}
		if strings.Contains(address, "=") {
			if config, err := pq.NewConfig(address); err == nil {
				found = append(found, config.Password)
			}
		}
		for _, secret := range found {
			if len(secret) >= shortestSecret {
				all = append(all, secret)
			}
		}
	}
	return all
}

type connectError struct {
	cause   error
	dialect schema.Dialect
}

func (e connectError) Error() string {
	return fmt.Sprintf("connect to the database: %v", usercode.HideDSN(e.cause))
}

func (e connectError) Unwrap() error { return e.cause }

// hint returns the command or flag that solves the problem, in brackets, or "": the library, from
// which err comes, does not know this command line.
func hint(cmd *cobra.Command, err error) string {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	connect, unreachable := errors.AsType[connectError](err)
	switch {
	case unreachable && connect.dialect == schema.SQLite:
		return " (check the file in ONCE_DSN or --dsn; once migrate up creates a new one)"
	case unreachable:
		return " (check the address and the user in ONCE_DSN or --dsn)"
	case is(operate.ErrNotFound, operate.ErrReplayNotFound) && cmd.HasParent():
		return fmt.Sprintf(" (%s list shows the IDs)", cmd.Parent().CommandPath())
	case is(dead.ErrNotBlocked):
		return " (once outbox blocked shows the blocked keys)"
	case is(parked.ErrConsumerNotFound):
		return " (once consumers list shows the consumers and their topics)"
	case is(reconcile.ErrNoLog):
		return " (once forward has the flag --keep-sent)"
	case is(mover.ErrNoTable):
		return " (check --forwarder-topic, or name the table with --messages-table)"
	}
	return ""
}
