package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/schema"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3 // the command succeeded, and found something that needs attention
)

// suggestionDistance is in how many letters an unknown command may differ from a suggested one.
const suggestionDistance = 2

type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(name string) string
	width          int // width of the terminal in characters, or 0 if the output is not cut

	settings settings
}

type settings struct {
	dsn, amqpURL   string
	managementURL  string
	consumerDSN    string
	schema, prefix string
	inbox, sent    string // layouts of the inbox and of the sent log
	actor, why     string
	json           bool
}

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// foundError: something needs attention. text is "" if the output says so already.
type foundError struct{ text string }

func (e foundError) Error() string { return e.text }

func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if found, ok := errors.AsType[foundError](err); ok {
		if found.text != "" {
			fmt.Fprintf(a.stderr, "once: %s\n", a.hide(found.text))
		}
		return exitFound
	}
	text := a.hide(err.Error() + hint(cmd, err))
	// Some errors begin with the name of the command or of the package.
	if !strings.HasPrefix(text, "once ") && !strings.HasPrefix(text, "once: ") {
		text = "once: " + text
	}
	fmt.Fprintln(a.stderr, text)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(a.stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "once",
		Short:         "Operate an outbox, its forwarder and the consumers' quarantine",
		Long:          rootHelp,
		Version:       versionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,

		SuggestionsMinimumDistance: suggestionDistance,

		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.configure(cmd) },
	}
	root.SetVersionTemplate("once {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.settings.dsn, "dsn", "", "database: postgres://user@host/name, or sqlite:FILE")
	flags.StringVar(&a.settings.schema, "schema", "", "PostgreSQL schema of the tables (default: the connection's search path)")
	flags.StringVar(&a.settings.prefix, "prefix", "", `beginning of the tables' names (default "once_")`)
	flags.Var(oneOf(&a.settings.inbox, "plain", "by_day"), "inbox", "layout of the inbox")
	flags.StringVar(&a.settings.actor, "actor", "", "who acts, for the audit log (default: the name of the system's user)")
	flags.BoolVar(&a.settings.json, "json", false, "write one JSON object instead of text")
	fromEnv(flags, "dsn", "schema", "prefix", "inbox", "actor")
	root.AddCommand(
		a.migrateCommand(), a.forwardCommand(), a.traceCommand(), a.outboxCommand(), a.deadCommand(), a.sentCommand(), a.parkedCommand(),
		a.consumersCommand(), a.quarantineCommand(), a.replaysCommand(), a.versionsCommand(), a.auditCommand(), a.archiveCommand(),
		a.reconcileCommand(), a.consoleCommand(), a.sweepCommand(), a.moverCommand(), a.doctorCommand(), a.statusCommand(), a.manCommand(),
	)
	return root
}

const rootHelp = `Operate an outbox, its forwarder and the consumers' quarantine.

Every flag with a name in brackets, such as (ONCE_DSN), can also be set by that
environment variable. Put passwords there: other users of the machine can see flags.

Commands that change many messages only show what matches. With --yes, they change it.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 something was found.`

// configure sets flags that are missing on the command line from their environment variables.
// Invalid values, and empty ones on the command line, are errors.
func (a *app) configure(cmd *cobra.Command) error {
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if name := envName(f); name != "" && !f.Changed {
			if value := a.env(name); value != "" {
				if err := f.Value.Set(value); err != nil {
					errs = append(errs, fmt.Errorf("invalid %s: %w", name, err))
				}
			}
		}
		if f.Changed && f.Value.Type() == "string" && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("--%s is empty: give it a value, or leave it out", f.Name))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

func (a *app) actor() (string, error) {
	if a.settings.actor != "" {
		return a.settings.actor, nil
	}
	if current, err := user.Current(); err == nil && current.Username != "" {
		return current.Username, nil
	}
	return "", usagef("the system does not know the name of its user: say who acts with --actor or ONCE_ACTOR")
}

func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,

		SuggestionsMinimumDistance: suggestionDistance,

		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
			}
			return unknownCommand(cmd, args[0])
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

func names(cmd *cobra.Command) (all []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
		}
	}
	return all
}

func unknownCommand(cmd *cobra.Command, name string) error {
	meant := ""
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		meant = fmt.Sprintf(" (did you mean %q?)", like[0])
	}
	return usagef("unknown command %q for %q%s: use one of %s", name, cmd.CommandPath(), meant, strings.Join(names(cmd), ", "))
}

func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasParent():
		return usagef("unexpected argument %q: %s takes flags only", args[0], cmd.CommandPath())
	}
	return unknownCommand(cmd, args[0])
}

var release string

func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func versionText() string {
	return fmt.Sprintf("%s (tables of version %d)", version(), schema.Version())
}

// manCommand is hidden, because packagers need it, and operators do not.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one directory", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o750); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same input gives the same pages
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "once " + version()}, args[0])
		},
	}
}
