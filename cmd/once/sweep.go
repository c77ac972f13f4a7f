package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/mover"
)

type sweepJSON struct {
	Removed     int64 `json:"removed"`
	DroppedDays int   `json:"dropped_days"` // number of dropped days of the sent log
}

func (a *app) sweepCommand() *cobra.Command {
	retention, keepSent := 30*24*time.Hour, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove expired rows of the inbox, and expired days of the sent log, once",
		Long: `Remove message ids from the inbox that are older than --retention, and parked messages
that were resolved or discarded before. once.Consumer does this while its router runs.
Use this command from cron where no such process may remove rows, for example because
the inbox has the layout by_day and the process does not own the tables.

Give --retention the longest dedup.Config.Retention of all consumers: a consumer that
has forgotten an id handles a late copy of its message again.

With --keep-sent, which is that of the forwarders, the days of a sent log with the layout
by_day are created and dropped, too. Do this at least once a day if the forwarders do not
own the tables.`,
		Args: noArgs,
		RunE: a.withTables(func(ctx context.Context, db database, _ []string) error {
			inbox, err := dedup.New(db.DB, dedup.Config{
				Schema: db.tables, Retention: retention, Logger: watermill.NewSlogLogger(a.logger("text", "warn")),
			})
			if err != nil {
				return usageError{err}
			}
			removed, err := inbox.Sweep(ctx)
			if err != nil {
				return err
			}
			out, text := sweepJSON{Removed: removed}, fmt.Sprintf("Removed %s.\n", counted(int(removed), "row", "rows"))
			if keepSent > 0 {
				log, err := dead.NewSentLog(db.DB, operate.Config{Schema: db.tables})
				if err != nil {
					return err
				}
				out.DroppedDays, err = log.SweepDays(ctx, keepSent)
				switch {
				case errors.Is(err, dead.ErrNotByDay):
					text += "The sent log is not partitioned by day: the forwarders delete its old rows.\n"
				case err != nil:
					return err
				default:
					text += fmt.Sprintf("Dropped %s of the sent log.\n", counted(out.DroppedDays, "day", "days"))
				}
			}
			return a.print(out, text)
		}),
	}
	cmd.Flags().Var(duration(&retention), "retention", "how long ids are remembered")
	cmd.Flags().Var(duration(&keepSent), "keep-sent", "drop days of the sent log that ended longer ago; at least 1m")
	fromEnv(cmd.Flags(), "retention", "keep-sent")
	return cmd
}

type moverJSON struct {
	Moved   int `json:"moved"`
	Left    int `json:"left"`    // number of messages that are not moved yet
	Writers int `json:"writers"` // number of open transactions that have written to the stock table
}

func (a *app) moverCommand() *cobra.Command {
	var (
		config mover.Config
		once   bool
	)
	cmd := &cobra.Command{
		Use:   "mover",
		Short: "Move messages from the table of Watermill's own forwarder into the outbox",
		Long: `Move messages from the table of Watermill's own forwarder (components/forwarder) into
the outbox, until a signal comes. Old writers and forwarders may run meanwhile. With
--once it moves all messages of the table and ends. The exit code is 3 if messages or
writers remain; the command lists them.`,
		Args: noArgs,
		RunE: a.withTables(func(ctx context.Context, db database, _ []string) error {
			if db.sqlite() {
				return usagef("the mover works with PostgreSQL only, because Watermill's forwarder does not use SQLite")
			}
			config.Schema, config.Logger = db.tables, watermill.NewSlogLogger(a.logger("text", "info"))
			m, err := mover.New(db.DB, config)
			if err != nil {
				return usageError{err}
			}
			if !once {
				return m.Run(ctx)
			}
			var out moverJSON
			if out.Moved, err = m.Move(ctx); err != nil {
				return err
			}
			if out.Left, out.Writers, err = m.Left(ctx); err != nil {
				return err
			}
			text := fmt.Sprintf("Moved %s; %d left, %s.\n", counted(out.Moved, "message", "messages"), out.Left,
				counted(out.Writers, "open writer", "open writers"))
			if err := a.print(out, text); err != nil {
				return err
			}
			if out.Left+out.Writers > 0 {
				return foundError{}
			}
			return nil
		}),
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if a.settings.json && !once {
			return usagef("--json needs --once: without it the mover runs until a signal comes")
		}
		return run(cmd, args)
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "move what is there, and end")
	flags.StringVar(&config.ForwarderTopic, "forwarder-topic", "", `forwarder topic of Watermill's forwarder (default "forwarder_topic")`)
	flags.StringVar(&config.ConsumerGroup, "consumer-group", "", "consumer group of its subscriber (default: the empty name)")
	flags.StringVar(&config.MessagesTable, "messages-table", "", "table of messages, as written in SQL (default: by the topic)")
	flags.StringVar(&config.OffsetsTable, "offsets-table", "", "table of offsets, as written in SQL (default: by the topic)")
	return cmd
}
