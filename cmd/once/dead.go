package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
)

// outboxConditions are the filters that dead letters and sent messages share.
var outboxConditions = []string{
	"topic", "message-id", "ordering-key", "tenant", "aggregate-type", "aggregate-id", "event-type",
}

var (
	deadConditions = append([]string{"reason", "group", "failed-after", "failed-before"}, outboxConditions...)
	sentConditions = append([]string{"sent-after", "sent-before"}, outboxConditions...)
)

func addOutboxFilter(flags *pflag.FlagSet, f *operate.Filter) {
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
}

func addDeadFilter(cmd *cobra.Command, f *operate.Filter) {
	flags := cmd.Flags()
	addOutboxFilter(flags, f)
	flags.Var(oneOf(&f.Reason, dead.ReasonExhausted, dead.ReasonUnacceptable, dead.ReasonMalformed,
		dead.ReasonInvalid, dead.ReasonCancelled), "reason", "only with this reason")
	flags.StringVar(&f.Fingerprint, "group", "", "only of this group; see once dead groups")
	flags.Var(moment(&f.FailedAfter), "failed-after", "only given up at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.FailedBefore), "failed-before", "only given up before this time")
}

func (a *app) deadCommand() *cobra.Command {
	return group("dead", "Messages that the forwarder gave up on: find, replay, discard",
		a.deadGroupsCommand(), a.deadListCommand(), a.deadShowCommand(), a.deadCountCommand(), a.deadReplayCommand(),
		a.deadDiscardCommand(), a.deadReleaseCommand(), a.deadExportCommand())
}

func (a *app) deadListCommand() *cobra.Command {
	filter, after := operate.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, in the order of their IDs",
		Args:  noArgs,
		RunE: with(a, dead.New, nil, func(ctx context.Context, l *dead.Letters, _ []string) error {
			out := lettersJSON{Letters: []letterJSON{}}
			var rows [][]string
			next, err := eachRow(ctx, filter, after, l.List, func(letter *dead.Letter) {
				out.Letters = append(out.Letters, letterOf(letter))
				rows = append(rows, []string{
					fmt.Sprint(letter.ID), letter.Topic, letter.MessageID, at(letter.LastFailedAt), fmt.Sprint(letter.Attempts),
					letter.Reason, letter.Error,
				})
			})
			if err != nil {
				return err
			}
			out.Next = next
			return a.printList(out, next, []string{"ID", "TOPIC", "MESSAGE", "DIED (UTC)", "TRIES", "REASON", "ERROR"}, rows,
				"No dead letter matches.")
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of letters")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

// Lists leave out Metadata and the payload.
type outboxJSON struct {
	ID          int64             `json:"id"`
	Position    int64             `json:"position"`
	MessageID   string            `json:"message_id"`
	Topic       string            `json:"topic"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Size        int               `json:"size"`
	CreatedAt   time.Time         `json:"created_at"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	content
}

func outboxOf(m *dead.Message) outboxJSON {
	return outboxJSON{
		ID: m.ID, Position: m.Position, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey, Size: m.Size, CreatedAt: m.CreatedAt,
	}
}

func (j *outboxJSON) whole(m *dead.Message) {
	j.Metadata, j.content = m.Metadata, contentOf(m.Payload)
}

type letterJSON struct {
	outboxJSON

	Attempts  int       `json:"attempts"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error"`
	MaybeSent bool      `json:"maybe_sent"`
	BlocksKey bool      `json:"blocks_key"`
	DiedAt    time.Time `json:"died_at"`
}

type lettersJSON struct {
	Letters []letterJSON `json:"letters"`
	Next    int64        `json:"next,omitempty"` // --after of the next page
}

func letterOf(l *dead.Letter) letterJSON {
	return letterJSON{
		outboxJSON: outboxOf(&l.Message), Attempts: l.Attempts, Reason: l.Reason, Error: l.Error,
		MaybeSent: l.Unknown, BlocksKey: l.BlocksKey, DiedAt: l.LastFailedAt,
	}
}

func (a *app) deadShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with its message",
		Args:  oneID,
		RunE: with(a, dead.New, nil, func(ctx context.Context, l *dead.Letters, args []string) error {
			letter, err := named(ctx, args, l.Get)
			if err != nil {
				return err
			}
			j := letterOf(&letter)
			j.whole(&letter.Message)
			return a.print(j, letterText(&j)+messageText(letter.Metadata, letter.Payload))
		}),
	}
}

func letterText(l *letterJSON) string {
	notes := ""
	if l.MaybeSent {
		notes = "may have been sent all the same"
	}
	blocks := ""
	if l.BlocksKey {
		blocks = "later messages of its ordering key wait for it"
	}
	return fields(
		"dead letter", fmt.Sprint(l.ID), "topic", l.Topic, "message id", l.MessageID, "ordering key", l.OrderingKey,
		"reason", l.Reason, "error", l.Error, "attempts", fmt.Sprint(l.Attempts), "note", notes, "blocks", blocks,
		"written", at(l.CreatedAt), "died", at(l.DiedAt), "position", fmt.Sprint(l.Position),
	)
}

type sentJSON struct {
	outboxJSON

	SentAt time.Time `json:"sent_at"`
}

type sentListJSON struct {
	Messages []sentJSON `json:"messages"`
	Next     int64      `json:"next,omitempty"` // --after of the next page
}

func addSentFilter(cmd *cobra.Command, f *operate.Filter) {
	flags := cmd.Flags()
	addOutboxFilter(flags, f)
	flags.Var(moment(&f.SentAfter), "sent-after", "only sent at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.SentBefore), "sent-before", "only sent before this time")
}

func (a *app) sentCommand() *cobra.Command {
	return group("sent", "The log of sent messages: find, replay", a.sentListCommand(), a.sentShowCommand(), a.sentReplayCommand())
}

func (a *app) sentListCommand() *cobra.Command {
	filter, after := operate.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sent messages, in the order of their IDs",
		Long: `List sent messages, in the order of their IDs. The log is empty unless the forwarder
keeps sent messages: see --keep-sent of once forward. Without --message-id or --aggregate-id,
the command searches the log from its beginning or from --sent-after, until it has found
--limit messages.`,
		Args: noArgs,
		RunE: with(a, dead.NewSentLog, nil, func(ctx context.Context, s *dead.SentLog, _ []string) error {
			out := sentListJSON{Messages: []sentJSON{}}
			var rows [][]string
			next, err := eachRow(ctx, filter, after, s.List, func(m *dead.SentMessage) {
				out.Messages = append(out.Messages, sentJSON{outboxJSON: outboxOf(&m.Message), SentAt: m.SentAt})
				rows = append(rows, []string{fmt.Sprint(m.ID), m.Topic, m.MessageID, at(m.SentAt), fmt.Sprint(m.Size), m.OrderingKey})
			})
			if err != nil {
				return err
			}
			out.Next = next
			return a.printList(out, next, []string{"ID", "TOPIC", "MESSAGE", "SENT (UTC)", "BYTES", "ORDERING KEY"}, rows,
				"No sent message matches. The log is empty unless the forwarder keeps sent messages (--keep-sent).")
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
		RunE: with(a, dead.NewSentLog, nil, func(ctx context.Context, s *dead.SentLog, args []string) error {
			m, err := named(ctx, args, s.Get)
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

func sentGroupsOf(groups []dead.SentGroup) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Topic, Count: g.Count, Topics: []string{g.Topic}, FirstSentAt: g.FirstSentAt, LastSentAt: g.LastSentAt, Skipped: g.Skipped,
		})
	}
	return all
}

//nolint:dupl // dead letters and sent messages have different types and texts
func (a *app) sentReplayCommand() *cobra.Command {
	var r outboxReplay
	cmd := a.outboxReplayCommand(&r, sentConditions, func(who operate.Act, ids []int64) func(*cobra.Command, []string) error {
		return with(a, dead.NewSentLog, &r.config, func(ctx context.Context, s *dead.SentLog, _ []string) error {
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
