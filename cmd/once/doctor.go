package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/schema"
)

type finding struct {
	Check string `json:"check"` // name of the check
	What  string `json:"what"`  // the problem
	Why   string `json:"why"`   // why this matters
	Do    string `json:"do"`    // what to do
}

type doctorJSON struct {
	Schema   string    `json:"schema,omitempty"` // PostgreSQL schema that contains the tables
	Skipped  []string  `json:"skipped"`          // checks that could not be made, and why
	Checks   []string  `json:"checks"`           // names of the checks that were made
	Findings []finding `json:"findings"`
}

type check struct {
	name string
	look func(d *doctor, ctx context.Context) ([]finding, error)
}

type doctor struct {
	app       *app
	db        database
	roles     []string
	retention time.Duration
	broker    brokerOptions
	skipped   []string

	// An older transaction than tooOld is reported, because forwarders and vacuum wait for it, and
	// a session that is idle in one for idleTooLong.
	tooOld, idleTooLong time.Duration

	// A table is reported with at least deadRows dead rows and bloatShare times as many as live
	// ones, and a replication slot that has kept rows for more than oldRows transactions.
	deadRows, oldRows int
}

// Checks of every database, of PostgreSQL, and of RabbitMQ, in this order.
var (
	tableChecks = []check{
		{"durability", (*doctor).durability},
		{"forwarders", (*doctor).forwarders},
		{"pauses", (*doctor).pauses},
		{"blocked keys", (*doctor).deadKeys},
		{"refused", (*doctor).refused},
		{"dead letters", (*doctor).deadLetters},
		{"quarantine", (*doctor).quarantine},
		{"retention", (*doctor).inboxRetention},
		{"retention", (*doctor).parkedRetention},
		{"consumers", (*doctor).consumers},
	}
	postgresChecks = []check{
		{"schemas", (*doctor).schemas},
		{"row security", (*doctor).rowSecurity},
		{"rights", (*doctor).rights},
		{"days", (*doctor).days},
		{"connections", (*doctor).connections},
		{"transactions", (*doctor).transactions},
		{"replication", (*doctor).replication},
		{"replication", (*doctor).horizons},
		{"clocks", (*doctor).clocks},
		{"bloat", (*doctor).bloat},
	}
	brokerChecks = []check{
		{"broker", (*doctor).topics},
		{"queues", (*doctor).alarms},
	}
)

const doctorHelp = `Look for what goes wrong in practice, and say what to do: tables, rights, settings of the
database, connections, long transactions, replication slots, forwarders, retention,
clocks, consumers, dead letters, quarantine, and with ONCE_AMQP_URL the broker and the
queues of the topics in the outbox. It says what it could not look at. It changes nothing. Exit code 3 if it finds something.`

func (a *app) doctorCommand() *cobra.Command {
	d := &doctor{
		app: a, retention: 30 * 24 * time.Hour, tooOld: 5 * time.Minute, idleTooLong: time.Minute, deadRows: 1_000_000, oldRows: 10_000_000,
	}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what goes wrong in practice, and say what to do",
		Long:  doctorHelp,
		Args:  noArgs,
		RunE: a.withDatabase(func(ctx context.Context, db database, _ []string) error {
			d.db = db
			if a.settings.amqpURL != "" {
				if _, err := a.broker(d.broker); err != nil {
					return err
				}
				if _, err := d.management(); err != nil {
					return err
				}
			}
			for _, role := range d.roles {
				if !slices.Contains(parts, role) {
					return usagef("--role %q: must be one of %s", role, strings.Join(parts, ", "))
				}
			}
			out := d.run(ctx)
			if err := a.print(out, doctorText(out)); err != nil {
				return err
			}
			if len(out.Findings) > 0 {
				return foundError{}
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	a.addBrokerFlags(flags, &d.broker)
	flags.StringVar(&a.settings.managementURL, "management-url", "",
		"RabbitMQ's management API (default: port 15672 of the broker's host, with its user)")
	flags.StringSliceVar(&d.roles, "role", nil, "the login must have the rights of these roles: "+strings.Join(parts, ", "))
	flags.Var(duration(&d.retention), "retention", "longest dedup.Config.Retention of the consumers")
	fromEnv(flags, "retention", "management-url")
	return cmd
}

func (d *doctor) skip(text string) { d.skipped = append(d.skipped, text) }

func (d *doctor) run(ctx context.Context) doctorJSON {
	out := doctorJSON{Checks: []string{"tables"}, Findings: []finding{}}
	checks := tableChecks
	if !d.db.sqlite() {
		checks = append(slices.Clip(checks), postgresChecks...)
	}
	if err := schema.Check(ctx, d.db.DB, d.db.tables); err != nil {
		out.Findings = append(out.Findings, finding{
			Check: "tables", What: d.app.hide(err.Error()),
			Why: "The library does not start with these tables, and the other checks of the tables need them.",
			Do:  repair(err),
		})
		checks = nil
	} else if err := d.db.findRights(ctx); err != nil {
		d.skip(d.app.hide(err.Error()))
	}
	if found, err := schema.Find(ctx, d.db.DB, d.db.tables); err == nil {
		out.Schema = found.Schema
	}
	if d.app.settings.amqpURL != "" {
		checks = append(slices.Clip(checks), brokerChecks...)
	}
	if d.app.settings.amqpURL == "" {
		d.skip("the broker: set ONCE_AMQP_URL")
	}
	for _, c := range checks {
		if !slices.Contains(out.Checks, c.name) {
			out.Checks = append(out.Checks, c.name)
		}
		found, err := c.look(d, ctx)
		if err != nil {
			found = append(found, finding{
				What: "This could not be checked: " + d.app.hide(err.Error()),
				Why:  "A problem here would not be found.",
				Do:   asWatcher,
			})
		}
		for i := range found {
			found[i].Check = c.name
		}
		out.Findings = append(out.Findings, found...)
	}
	out.Skipped = append([]string{}, d.skipped...)
	return out
}

// asWatcher is the advice for a check that could not be made.
const asWatcher = "Run once doctor with a login that has the role watcher (docs/roles.md), or repair the cause."

func repair(err error) string {
	text := strings.Trim(remedy(err), " ()")
	switch {
	case text != "":
		return strings.ToUpper(text[:1]) + text[1:] + "."
	case errors.Is(err, schema.ErrRowSecurity):
		return "Disable row level security, or exempt the login, as the text says."
	case errors.Is(err, schema.ErrSequence):
		return "Run the SQL in the text as the owner of the tables."
	case errors.Is(err, schema.ErrEncoding):
		return "Change the encoding, as the text says."
	}
	return asWatcher
}

func doctorText(out doctorJSON) string {
	var b strings.Builder
	for _, f := range out.Findings {
		fmt.Fprintf(&b, "%s: %s\n  why: %s\n  do:  %s\n\n", strings.ToUpper(f.Check), plain(f.What), plain(f.Why), plain(f.Do))
	}
	for _, text := range out.Skipped {
		fmt.Fprintf(&b, "Not looked at: %s.\n", plain(text))
	}
	checked := strings.Join(out.Checks, ", ")
	if out.Schema != "" {
		checked += fmt.Sprintf(" (schema %q)", out.Schema)
	}
	if len(out.Findings) == 0 {
		return b.String() + "Nothing was found. Checked: " + checked + ".\n"
	}
	return b.String() + counted(len(out.Findings), "finding", "findings") + ". Checked: " + checked + ".\n"
}
