package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate/audit"
)

type recordJSON struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"at"`
	Actor     string    `json:"actor"`
	Why       string    `json:"why,omitempty"`
	Action    string    `json:"action"`
	Subject   string    `json:"subject"`
	Consumer  string    `json:"consumer,omitempty"`
	MessageID string    `json:"message_id,omitempty"`
	ReplayID  int64     `json:"replay_id,omitempty"`
}

type auditJSON struct {
	Records []recordJSON `json:"records"`
	Next    int64        `json:"next,omitempty"` // --before of the next page
}

// List reads only a part of the log in one call.
func recordsOf(ctx context.Context, log *audit.Log, f audit.Filter) (out auditJSON, rows [][]string, err error) {
	out.Records = []recordJSON{}
	for {
		page, err := log.List(ctx, f)
		if err != nil {
			return out, nil, err
		}
		for _, r := range page.Rows {
			out.Records = append(out.Records, recordJSON(r))
			rows = append(rows, []string{fmt.Sprint(r.ID), at(r.At), r.Actor, r.Action, r.Subject, r.Consumer, r.MessageID, r.Why})
		}
		f.Limit -= len(page.Rows)
		f.BeforeID, out.Next = page.Next, page.Next
		if page.Next == 0 || f.Limit == 0 {
			return out, rows, nil
		}
	}
}

func (a *app) auditCommand() *cobra.Command {
	filter, replay, before := audit.Filter{Limit: 100}, 0, 0
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List who changed what, and why, the latest first",
		Args:  noArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("actor") {
			return usagef("--actor says who changes something: use --by to list the acts of one person")
		}
		return a.withTables(func(ctx context.Context, db database, _ []string) error {
			log, err := audit.New(db.DB, db.tables)
			if err != nil {
				return err
			}
			filter.ReplayID, filter.BeforeID = int64(replay), int64(before)
			out, rows, err := recordsOf(ctx, log, filter)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				return a.print(out, "No act matches.\n")
			}
			text := table(a.width, []string{"ID", "AT (UTC)", "ACTOR", "ACTION", "SUBJECT", "CONSUMER", "MESSAGE", "WHY"}, rows)
			if out.Next > 0 {
				text += fmt.Sprintf("\nThere may be more: add --before %d\n", out.Next)
			}
			return a.print(out, text)
		})(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&filter.Actor, "by", "", "only of this actor")
	flags.StringVar(&filter.Action, "action", "", "only this action: replay, discard, edit, retry, cancel, release, import, stop, resume")
	flags.StringVar(&filter.Subject, "subject", "", "only about this row, as in parked:17, dead:17, sent:17, outbox:17, replay:17")
	flags.StringVar(&filter.Consumer, "consumer", "", "only about messages of this consumer")
	flags.StringVar(&filter.MessageID, "message-id", "", "only about the message with this id")
	flags.Var(atLeast(&replay, 1), "replay", "only of the replay with this ID")
	flags.Var(moment(&filter.After), "since", "only at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&filter.Before), "until", "only before this time")
	flags.Var(atLeast(&filter.Limit, 1), "limit", "largest number of acts")
	flags.Var(atLeast(&before, 1), "before", "list acts before this ID")
	return cmd
}
