package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/operate/reconcile"
	"github.com/watermill-once/once/schema"
)

type reconcileJSON struct {
	Reports []reconcile.Report `json:"reports"`
}

type receiverSide struct{ schema, prefix, inbox string }

func (a *app) reconcileCommand() *cobra.Command {
	cmd := group("reconcile", "Compare what was sent with what was handled, across databases",
		a.reconcileRunCommand(), a.reconcileAskCommand(), a.reconcileAnswerCommand(), a.reconcileReadCommand(), a.reconcileLedgerCommand())
	cmd.Long = `Compare what was sent with what was handled, across databases, and list the messages
that differ. With both databases at hand:

  once reconcile run --dsn SENDER --consumer-dsn CONSUMERS --topic orders.placed --consumer payments

Without access to each other's database, the two sides exchange files:

  once reconcile ask --topic orders.placed --file question.json       # at the sender
  once reconcile answer question.json --consumer payments --file answer.json   # at the consumers
  once reconcile read answer.json --topic orders.placed               # at the sender

The forwarders must keep sent messages: see --keep-sent of once forward. The exit code
is 3 if messages are missing, or were never sent.`
	return cmd
}

func addSenderFlags(flags *pflag.FlagSet, c *reconcile.SenderConfig) {
	flags.Var(nameList(&c.Topics), "topic", "all topics that the consumers receive, separated by commas")
	flags.Var(moment(&c.Since), "since", "compare from this time on (default: all that both sides remember)")
	c.Recent = time.Hour
	flags.Var(duration(&c.Recent), "recent", "leave out what was sent so recently")
	c.LongestDelay = 24 * time.Hour
	flags.Var(duration(&c.LongestDelay), "longest-delay", "longest time from sending to handling, for ids without a time")
}

func addReceiverFlags(flags *pflag.FlagSet, c *reconcile.ReceiverConfig) {
	flags.Var(nameList(&c.Consumers), "consumer", "names of consumers, separated by commas")
	c.InboxRetention = 7 * 24 * time.Hour
	flags.Var(duration(&c.InboxRetention), "inbox-retention", "how long all consumers remember ids")
}

func addKeep(flags *pflag.FlagSet, keep *bool) {
	flags.BoolVar(keep, "keep", false, "keep the reports in the sender's database: the console shows them")
}

// report keeps the reports in the sender's database if keep is set. Differences are a foundError.
func (a *app) report(ctx context.Context, db database, keep bool, reports []reconcile.Report) error {
	if keep {
		archive, err := reconcile.NewArchive(db.DB, db.tables)
		if err == nil {
			err = archive.Keep(ctx, reports...)
		}
		if err != nil {
			return err
		}
	}
	return a.printReports(reconcileJSON{append([]reconcile.Report{}, reports...)})
}

func needsTopics(c *reconcile.SenderConfig) error {
	if len(c.Topics) == 0 {
		return usagef("name all topics that the consumers receive with --topic")
	}
	return nil
}

func needsConsumers(c *reconcile.ReceiverConfig) error {
	if len(c.Consumers) == 0 {
		return usagef("name the consumers to compare with --consumer")
	}
	return nil
}

// checked calls check, which checks the flags, before run.
func checked(check func() error, run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		return run(cmd, args)
	}
}

func (a *app) reconcileRunCommand() *cobra.Command {
	var (
		from  reconcile.SenderConfig
		to    reconcile.ReceiverConfig
		other receiverSide
		keep  bool
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Compare two databases that this process can reach",
		Args:  noArgs,
		RunE: checked(func() error { return errors.Join(needsTopics(&from), needsConsumers(&to)) },
			a.withTables(func(ctx context.Context, db database, _ []string) error {
				return a.withReceiver(ctx, other, db, func(receiver database) error {
					from.Schema, to.Schema = db.tables, receiver.tables
					s, err1 := reconcile.NewSender(db.DB, from)
					r, err2 := reconcile.NewReceiver(receiver.DB, to)
					if err := errors.Join(err1, err2); err != nil {
						return usageError{err}
					}
					reports, err := reconcile.Compare(ctx, s, r)
					if err != nil {
						return err
					}
					return a.report(ctx, db, keep, reports)
				})
			})),
	}
	flags := cmd.Flags()
	addSenderFlags(flags, &from)
	addReceiverFlags(flags, &to)
	addKeep(flags, &keep)
	flags.StringVar(&a.settings.consumerDSN, "consumer-dsn", "", "database of the consumers (default: that of --dsn)")
	flags.StringVar(&other.schema, "consumer-schema", "", "PostgreSQL schema of the consumers' tables (default: that of --schema)")
	flags.StringVar(&other.prefix, "consumer-prefix", "", "beginning of the consumers' tables' names (default: that of --prefix)")
	flags.Var(oneOf(&other.inbox, string(schema.Plain), string(schema.ByDay)), "consumer-inbox",
		"layout of the consumers' inbox (default: that of --inbox)")
	fromEnv(flags, "consumer-dsn")
	return cmd
}

// Without flags for the consumers' side, it is the sender's database.
func (a *app) withReceiver(ctx context.Context, side receiverSide, sender database, work func(receiver database) error) (err error) {
	b := *a
	s := &b.settings
	for _, setting := range []struct {
		to    *string
		value string
	}{{&s.dsn, s.consumerDSN}, {&s.schema, side.schema}, {&s.prefix, side.prefix}, {&s.inbox, side.inbox}} {
		if setting.value != "" {
			*setting.to = setting.value
		}
	}
	if b.settings == a.settings {
		return work(sender)
	}
	db, err := b.open(ctx, false)
	if err != nil {
		return fmt.Errorf("the consumers' side: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := schema.Check(ctx, db.DB, db.tables); err != nil {
		return fmt.Errorf("the consumers' side: %w%s", err, remedy(err))
	}
	return work(db)
}
