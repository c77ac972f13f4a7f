package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate/reconcile"
)

type ledgerJSON struct {
	Lines []reconcile.Line `json:"lines"`
}

func (a *app) reconcileLedgerCommand() *cobra.Command {
	var config reconcile.LedgerConfig
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Count what one database has sent, handled and parked",
		Long: `Count what one database has sent, handled and parked, by the times of the rows in UTC.
The inbox knows neither topics nor event types. The command reads whole tables.

  once reconcile ledger --by day,topic --since 7d`,
		Args: noArgs,
		RunE: a.withTables(func(ctx context.Context, db database, _ []string) error {
			config.Schema = db.tables
			lines, err := reconcile.Ledger(ctx, db.DB, config)
			if err != nil {
				return err
			}
			return a.print(ledgerJSON{append([]reconcile.Line{}, lines...)}, a.ledgerText(config, lines))
		}),
	}
	run := cmd.RunE
	cmd.RunE = checked(func() error {
		for _, name := range config.By {
			if !slices.Contains(ledgerColumns, name) {
				return usagef("invalid --by %q: use day or hour, topic, consumer, tenant, type", name)
			}
		}
		return nil
	}, run)
	flags := cmd.Flags()
	flags.StringSliceVar(&config.By, "by", []string{"day"}, "columns, separated by commas: day or hour, topic, consumer, tenant, type")
	flags.Var(moment(&config.From), "since", "only rows of this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&config.Until), "until", "only rows before this time")
	return cmd
}

var ledgerColumns = []string{"day", "hour", "topic", "consumer", "tenant", "type"}

func (a *app) ledgerText(config reconcile.LedgerConfig, lines []reconcile.Line) string {
	if len(lines) == 0 {
		return "The tables have no messages of this time.\n"
	}
	head := []string{}
	for _, c := range config.By {
		head = append(head, strings.ToUpper(c))
	}
	var rows [][]string
	for _, l := range lines {
		var row []string
		for _, c := range config.By {
			row = append(row, map[string]string{
				"day": l.Start.Format(time.DateOnly), "hour": at(l.Start), "topic": l.Topic,
				"consumer": l.Consumer, "tenant": l.Tenant, "type": l.EventType,
			}[c])
		}
		rows = append(rows, append(row, l.State, fmt.Sprint(l.N), at(l.First), at(l.Last)))
	}
	return table(a.width, append(head, "STATE", "MESSAGES", "FIRST (UTC)", "LAST (UTC)"), rows)
}
