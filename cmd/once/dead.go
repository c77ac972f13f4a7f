package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/deadletter"
)

// outboxConditions are the filters that dead letters and sent messages share.
var outboxConditions = []string{
	"topic", "message-id", "ordering-key", "tenant", "aggregate-type", "aggregate-id", "event-type",
}

var (
	deadConditions = append([]string{"reason", "group", "failed-after", "failed-before"}, outboxConditions...)
	sentConditions = append([]string{"sent-after", "sent-before"}, outboxConditions...)
)

func addOutboxFilter(flags *pflag.FlagSet, f *deadletter.Filter) {
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
}

func addDeadFilter(cmd *cobra.Command, f *deadletter.Filter) {
	flags := cmd.Flags()
	addOutboxFilter(flags, f)
	flags.Var(oneOf(&f.Reason, deadletter.ReasonExhausted, deadletter.ReasonUnacceptable, deadletter.ReasonMalformed,
		deadletter.ReasonInvalid, deadletter.ReasonCancelled), "reason", "only with this reason")
	flags.StringVar(&f.Fingerprint, "group", "", `only of this group, as in "exhausted: no queue"; see once dead groups`)
	flags.Var(moment(&f.FailedAfter), "failed-after", "only given up at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.FailedBefore), "failed-before", "only given up before this time")
}

func (a *app) deadCommand() *cobra.Command {
	return group("dead", "Messages that the forwarder gave up on: find, replay, discard",
		a.deadGroupsCommand(), a.deadListCommand(), a.deadShowCommand(), a.deadCountCommand(), a.deadReplayCommand(),
		a.deadDiscardCommand(), a.deadReleaseCommand(), a.deadExportCommand())
}

// withDead is like withTables, and also opens the dead letters.
func (a *app) withDead(
	config *deadletter.Config, work func(ctx context.Context, l *deadletter.Letters, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		letters, err := deadletter.New(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, letters, args)
	})
}

// outboxJSON is what dead letters and sent messages have in common. Lists leave out
// Metadata and the payload.
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

func outboxOf(m *deadletter.Message) outboxJSON {
	return outboxJSON{
		ID: m.ID, Position: m.Position, MessageID: m.MessageID, Topic: m.Topic, OrderingKey: m.OrderingKey, Size: m.Size, CreatedAt: m.CreatedAt,
	}
}

// whole adds metadata and payload.
func (j *outboxJSON) whole(m *deadletter.Message) {
	j.Metadata, j.content = m.Metadata, contentOf(m.Payload)
}

// letterJSON is a dead letter.
type letterJSON struct {
	outboxJSON

	Attempts  int       `json:"attempts"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error"`
	MaybeSent bool      `json:"maybe_sent"`
	BlocksKey bool      `json:"blocks_key"`
	DiedAt    time.Time `json:"died_at"`
}

// lettersJSON is the output of dead list.
type lettersJSON struct {
	Letters []letterJSON `json:"letters"`
	Next    int64        `json:"next,omitempty"` // --after of the next page
}

func letterOf(l *deadletter.Letter) letterJSON {
	return letterJSON{
		outboxJSON: outboxOf(&l.Message), Attempts: l.Attempts, Reason: l.Reason, Error: l.Error,
		MaybeSent: l.Unknown, BlocksKey: l.BlocksKey, DiedAt: l.LastFailedAt,
	}
}

func deadGroupsOf(groups []deadletter.Group) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Fingerprint, Count: g.Count, More: g.More, Topics: g.Topics, Reason: g.Reason, Error: g.Error,
			FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt, Skipped: g.Skipped,
		})
	}
	return all
}

func (a *app) deadGroupsCommand() *cobra.Command {
	filter := deadletter.Filter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List the groups of dead letters with the same reason and error",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			groups, err := l.Groups(ctx, filter)
			if err != nil {
				return err
			}
			if len(groups) == 0 {
				return a.print(groupsJSON{Groups: []groupJSON{}}, "No dead letter matches.\n")
			}
			out := groupsJSON{Groups: deadGroupsOf(groups)}
			text := groupTable(a.width, out.Groups)
			if len(groups) == filter.Limit {
				out.Next = groups[len(groups)-1].Fingerprint
				text += fmt.Sprintf("\nThere may be more: add --after %q\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of groups")
	cmd.Flags().StringVar(&filter.AfterGroup, "after", "", "begin after this group")
	return cmd
}

func (a *app) deadListCommand() *cobra.Command {
	filter, after := deadletter.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, in the order of their IDs",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			filter.AfterID = int64(after)
			letters, err := l.List(ctx, filter)
			if err != nil {
				return err
			}
			out := lettersJSON{Letters: []letterJSON{}}
			var rows [][]string
			for _, letter := range letters {
				out.Letters = append(out.Letters, letterOf(&letter))
				rows = append(rows, []string{
					fmt.Sprint(letter.ID), letter.Topic, letter.MessageID, at(letter.LastFailedAt), fmt.Sprint(letter.Attempts),
					letter.Reason, letter.Error,
				})
			}
			if len(rows) == 0 {
				return a.print(out, "No dead letter matches.\n")
			}
			text := table(a.width, []string{"ID", "TOPIC", "MESSAGE", "DIED (UTC)", "TRIES", "REASON", "ERROR"}, rows)
			if len(rows) == filter.Limit {
				out.Next = letters[len(letters)-1].ID
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of letters")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) deadShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with its message",
		Args:  oneID,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			letter, err := l.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := letterOf(&letter)
			j.whole(&letter.Message)
			return a.print(j, letterText(&j)+messageText(letter.Metadata, letter.Payload))
		}),
	}
}

// letterText renders a dead letter without its message.
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

func (a *app) deadCountCommand() *cobra.Command {
	var filter deadletter.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count dead letters",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			n, err := l.Count(ctx, filter)
			if err != nil {
				return err
			}
			return a.print(countJSON{n}, fmt.Sprintln(n))
		}),
	}
	addDeadFilter(cmd, &filter)
	return cmd
}
