package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/schema"
)

type tablesJSON struct {
	Version int    `json:"version"`          // version that this command needs
	Schema  string `json:"schema,omitempty"` // PostgreSQL schema that contains the tables
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

func (a *app) migrateCommand() *cobra.Command {
	return group("migrate", "Create, upgrade and check the tables",
		a.migrateUpCommand(), a.migrateCheckCommand(), a.migrateSQLCommand(), a.migrateRolesCommand())
}

// Other commands work with both layouts of the sent log.
func (a *app) addSentLayout(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Var(oneOf(&a.settings.sent, string(schema.ByDay)), "sent", "layout of the sent log: by_day (default: the one that it has)")
	fromEnv(cmd.Flags(), "sent")
	return cmd
}

func (a *app) migrateUpCommand() *cobra.Command {
	return a.addSentLayout(&cobra.Command{
		Use:   "up",
		Short: "Create the tables, or upgrade them to this version",
		Long: `Create the tables, or upgrade them to this version. All missing migrations are applied
in one transaction, or none. Run it as the owner of the tables; it may run many times
and in several places at once.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			db, err := a.open(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, db.Close()) }()
			if err := schema.Up(cmd.Context(), db.DB, db.tables); err != nil {
				return fmt.Errorf("%w%s", err, remedy(err))
			}
			return a.tablesFound(cmd.Context(), db, "The tables%s have version %d.\n")
		},
	})
}

func (a *app) migrateCheckCommand() *cobra.Command {
	return a.addSentLayout(&cobra.Command{
		Use:   "check",
		Short: "Say whether this version works with the tables; exit code 3 if not",
		Args:  noArgs,
		RunE: a.withDatabase(func(ctx context.Context, db database, _ []string) error {
			err := schema.Check(ctx, db.DB, db.tables)
			if err == nil {
				return a.tablesFound(ctx, db, "The tables%s work with version %d.\n")
			}
			if !tablesProblem(err) {
				return err
			}
			text := a.hide(err.Error() + remedy(err))
			if err := a.print(tablesJSON{Version: schema.Version(), Problem: text}, text+"\n"); err != nil {
				return err
			}
			return foundError{}
		}),
	})
}

func (a *app) tablesFound(ctx context.Context, db database, text string) error {
	found, err := schema.Find(ctx, db.DB, db.tables)
	if err != nil {
		return err
	}
	place := ""
	if found.Schema != "" {
		place = fmt.Sprintf(" in schema %q", found.Schema)
	}
	return a.print(tablesJSON{Version: schema.Version(), Schema: found.Schema, OK: true}, fmt.Sprintf(text, place, schema.Version()))
}

// tablesProblem returns false if the check itself has failed.
func tablesProblem(err error) bool {
	for _, problem := range []error{
		schema.ErrMissing, schema.ErrAmbiguous, schema.ErrOutdated, schema.ErrNewer, schema.ErrLayout, schema.ErrRowSecurity,
		schema.ErrSequence, schema.ErrDialect, schema.ErrEncoding,
	} {
		if errors.Is(err, problem) {
			return true
		}
	}
	return false
}

type sqlJSON struct {
	SQL string `json:"sql"`
}

func (a *app) migrateSQLCommand() *cobra.Command {
	dialect, from, goose := string(schema.PostgreSQL), 0, false
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Write the migrations as SQL, for your own migration tool",
		Long: `Write the migrations as SQL, for your own migration tool. Apply the text in one
transaction. It needs no database. With --goose, the text is a migration of goose.

  once migrate sql --goose > migrations/00007_once.sql`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := a.tables(schema.Dialect(dialect))
			if err != nil {
				return err
			}
			text, err := schema.SQLFrom(config, from)
			if from == 0 && err == nil {
				text, err = schema.SQL(config) // schema.SQL also converts the layouts
			}
			if err != nil {
				return usageError{err}
			}
			if goose { // which would split the text at each semicolon, also inside of functions
				text = "-- +goose Up\n-- +goose StatementBegin\n" + strings.TrimRight(text, "\n") + "\n-- +goose StatementEnd\n"
			}
			return a.print(sqlJSON{text}, text)
		},
	}
	cmd.Flags().BoolVar(&goose, "goose", false, "write a migration of goose, with +goose Up, StatementBegin and StatementEnd")
	cmd.Flags().Var(oneOf(&dialect, string(schema.PostgreSQL), string(schema.SQLite)), "dialect", "kind of database")
	cmd.Flags().Var(atLeast(&from, 0), "from", "write only the migrations after this version")
	return a.addSentLayout(cmd)
}

func (a *app) migrateRolesCommand() *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "Write the SQL that creates PostgreSQL roles for the parts of a service",
		Long: `Write the SQL that creates PostgreSQL roles for producer, forwarder, consumer, operator
and watcher, each with the rights that the part needs. Run the SQL as the owner of the
tables, after every migration. It needs no database.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := a.tables(schema.PostgreSQL)
			if err != nil {
				return err
			}
			text, err := schema.Roles(config, prefix)
			if err != nil {
				return usageError{err}
			}
			return a.print(sqlJSON{text}, text)
		},
	}
	cmd.Flags().StringVar(&prefix, "role-prefix", "", "beginning of the roles' names (default: the prefix of the tables)")
	return cmd
}

func (a *app) tables(dialect schema.Dialect) (schema.Config, error) {
	config := schema.Config{
		Dialect: dialect, Schema: a.settings.schema, Prefix: a.settings.prefix,
		Inbox: schema.Layout(a.settings.inbox), Sent: schema.Layout(a.settings.sent),
	}
	if err := config.Validate(); err != nil {
		return config, usageError{err}
	}
	return config, nil
}
