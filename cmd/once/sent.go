package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
)

// sentJSON describes a message of the sent log.
type sentJSON struct {
	outboxJSON

	SentAt time.Time `json:"sent_at"`
}

// sentListJSON is the JSON output of "once sent list".
type sentListJSON struct {
	Messages []sentJSON `json:"messages"`
	Next     int64      `json:"next,omitempty"` // --after of the next page
}

func addSentFilter(cmd *cobra.Command, f *deadletter.Filter) {
	flags := cmd.Flags()
	addOutboxFilter(flags, f)
	flags.Var(moment(&f.SentAfter), "sent-after", "only sent at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.SentBefore), "sent-before", "only sent before this time")
}

func (a *app) sentCommand() *cobra.Command {
	return group("sent", "The log of sent messages: find, replay", a.sentListCommand(), a.sentShowCommand(), a.sentReplayCommand())
}

// withSent works like withTables, but the function work gets the sent log instead of the
// database.
func (a *app) withSent(
	config *deadletter.Config, work func(ctx context.Context, s *deadletter.SentLog, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		log, err := deadletter.NewSentLog(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, log, args)
	})
}

func (a *app) sentListCommand() *cobra.Command {
	filter, after := deadletter.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sent messages, in the order of their IDs",
		Long: `List sent messages, in the order of their IDs. The log is empty unless the forwarder
keeps sent messages: see --keep-sent of once forward. Without --message-id or --aggregate-id,
the command searches the log from its beginning or from --sent-after, until it has found
--limit messages.`,
		Args: noArgs,
		RunE: a.withSent(&deadletter.Config{}, func(ctx context.Context, s *deadletter.SentLog, _ []string) error {
			f := filter
			f.AfterID = int64(after)
			out := sentListJSON{Messages: []sentJSON{}}
			var rows [][]string
			for more := true; more && f.Limit > 0; more = out.Next > 0 {
				page, err := s.List(ctx, f)
				if err != nil {
					return err
				}
				for _, m := range page.Messages {
					out.Messages = append(out.Messages, sentJSON{outboxJSON: outboxOf(&m.Message), SentAt: m.SentAt})
					rows = append(rows, []string{fmt.Sprint(m.ID), m.Topic, m.MessageID, at(m.SentAt), fmt.Sprint(m.Size), m.OrderingKey})
				}
				out.Next, f.AfterID, f.Limit = page.Next, page.Next, f.Limit-len(page.Messages)
			}
			if len(rows) == 0 {
				return a.print(out, "No sent message matches. The log is empty unless the forwarder keeps sent messages (--keep-sent).\n")
			}
			text := table(a.width, []string{"ID", "TOPIC", "MESSAGE", "SENT (UTC)", "BYTES", "ORDERING KEY"}, rows)
			if out.Next > 0 {
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addSentFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) sentShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one sent message",
		Args:  oneID,
		RunE: a.withSent(&deadletter.Config{}, func(ctx context.Context, s *deadletter.SentLog, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			m, err := s.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := sentJSON{outboxJSON: outboxOf(&m.Message), SentAt: m.SentAt}
			j.whole(&m.Message)
			return a.print(j, fields(
				"sent message", fmt.Sprint(m.ID), "topic", m.Topic, "message id", m.MessageID, "ordering key", m.OrderingKey,
				"written", at(m.CreatedAt), "sent", at(m.SentAt), "position", fmt.Sprint(m.Position),
			)+messageText(m.Metadata, m.Payload))
		}),
	}
}

func sentGroupsOf(groups []deadletter.SentGroup) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Topic, Count: g.Count, Topics: []string{g.Topic}, FirstSentAt: g.FirstSentAt, LastSentAt: g.LastSentAt, Skipped: g.Skipped,
		})
	}
	return all
}

func (a *app) sentReplayCommand() *cobra.Command {
	var r outboxReplay
	cmd := a.outboxReplayCommand(&r, sentConditions, func(who deadletter.Act, ids []int64) func(*cobra.Command, []string) error {
		return a.withSent(&r.config, func(ctx context.Context, s *deadletter.SentLog, _ []string) error {
			return a.replayToOutbox(ctx, s, who, ids, &r, func() ([]groupJSON, error) {
				groups, err := s.DryRun(ctx, r.filter, r.plan)
				return sentGroupsOf(groups), err
			})
		})
	})
	cmd.Short = "Put copies of sent messages into the outbox"
	cmd.Long = `Put copies of sent messages into the outbox, with the same message ids: consumers that
have handled a message skip the copy. Messages that you name by ID are replayed at
once. With filters, the command says which messages it would replay. With --yes, it
replays them. Messages that were sent longer ago than --inbox-retention need --force.

  once sent replay --topic orders.placed --sent-after 2h --rate 500 --why "a queue was purged" --yes`
	addSentFilter(cmd, &r.filter)
	return cmd
}
