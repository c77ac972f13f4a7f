package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// quarantineConditions are the flags of quarantineFilter that select entries.
var quarantineConditions = []string{
	"consumer", "topic", "message-id", "tenant", "aggregate-type", "aggregate-id", "event-type",
	"reason", "error-type", "group", "failed-after", "failed-before",
}

func addQuarantineFilter(cmd *cobra.Command, f *poison.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only of the message with this id")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
	flags.Var(oneOf(&f.Reason, poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed,
		poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable, poison.ReasonGap, poison.ReasonStale,
		poison.ReasonCancelled),
		"reason", "only with this reason")
	flags.StringVar(&f.ErrorType, "error-type", "", "only with this Go type of the error")
	flags.StringVar(&f.Fingerprint, "group", "", "only of this failure group, see once quarantine groups")
	flags.Var(moment(&f.FailedAfter), "failed-after", "only last failed at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.FailedBefore), "failed-before", "only last failed before this time")
}

func (a *app) quarantineCommand() *cobra.Command {
	return group("quarantine", "Messages that consumers gave up on: find, replay, edit, discard",
		a.quarantineGroupsCommand(), a.quarantineListCommand(), a.quarantineShowCommand(), a.quarantineCountCommand(),
		a.quarantineReplayCommand(), a.quarantineEditCommand(), a.quarantineDiscardCommand(),
		a.quarantineExportCommand(), a.quarantineImportCommand())
}

// withQuarantine is withTables with the quarantine.
func (a *app) withQuarantine(
	config *poison.Config, work func(ctx context.Context, q *poison.Quarantine, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		q, err := poison.New(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, q, args)
	})
}

// entryJSON is an entry of the quarantine. Lists leave out Metadata and the payload.
type entryJSON struct {
	ID            int64             `json:"id"`
	Consumer      string            `json:"consumer"`
	Topic         string            `json:"topic"`
	MessageID     string            `json:"message_id"`
	Tenant        string            `json:"tenant,omitempty"`
	State         string            `json:"state"`
	Reason        string            `json:"reason"`
	Error         string            `json:"error"`
	ErrorType     string            `json:"error_type"`
	Group         string            `json:"group"`
	Attempts      int               `json:"attempts"`
	Crashes       int               `json:"crashes"`
	Replays       int               `json:"replays"`
	BlocksKey     bool              `json:"blocks_key"`
	CreatedAt     time.Time         `json:"created_at"`
	FirstFailedAt time.Time         `json:"first_failed_at,omitzero"`
	LastFailedAt  time.Time         `json:"last_failed_at,omitzero"`
	FinishedAt    time.Time         `json:"finished_at,omitzero"`
	EditedFrom    int64             `json:"edited_from,omitempty"`
	ReplayID      int64             `json:"replay_id,omitempty"`
	Damaged       string            `json:"damaged,omitempty"` // why the stored message cannot be read
	Metadata      map[string]string `json:"metadata,omitempty"`
	content
}

// entriesJSON is the output of quarantine list.
type entriesJSON struct {
	Entries []entryJSON `json:"entries"`
	Next    int64       `json:"next,omitempty"` // --after of the next page
}

func entryOf(e *poison.Entry) entryJSON {
	j := entryJSON{
		ID: e.ID, Consumer: e.Consumer, Topic: e.Topic, MessageID: e.MessageID, Tenant: e.Tenant, State: e.State,
		Reason: e.Reason, Error: e.Error, ErrorType: e.ErrorType, Group: e.Fingerprint,
		Attempts: e.Attempts, Crashes: e.Crashes, Replays: e.Replays, BlocksKey: e.BlocksKey,
		CreatedAt: e.CreatedAt, FirstFailedAt: e.FirstFailedAt, LastFailedAt: e.LastFailedAt, FinishedAt: e.FinishedAt,
		EditedFrom: e.EditedFrom, ReplayID: e.ReplayID,
	}
	if e.MessageErr != nil {
		j.Damaged = e.MessageErr.Error()
	}
	return j
}

func quarantineGroupsOf(groups []poison.Group) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Fingerprint, Count: g.Count, More: g.More, Consumers: g.Consumers, Topics: g.Topics, Reason: g.Reason,
			ErrorType: g.ErrorType, Error: g.Error, FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt,
		})
	}
	return all
}

func (a *app) quarantineGroupsCommand() *cobra.Command {
	filter := poison.Filter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List the failure groups: entries with one cause",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			groups, err := q.Groups(ctx, filter)
			if err != nil {
				return err
			}
			if len(groups) == 0 {
				return a.print(groupsJSON{Groups: []groupJSON{}}, "No message in quarantine matches.\n")
			}
			out := groupsJSON{Groups: quarantineGroupsOf(groups)}
			text := groupTable(a.width, out.Groups)
			if len(groups) == filter.Limit {
				out.Next = groups[len(groups)-1].Fingerprint
				text += "\nThere may be more: add --after " + out.Next + "\n"
			}
			return a.print(out, text)
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of groups")
	cmd.Flags().StringVar(&filter.AfterGroup, "after", "", "begin after this group")
	return cmd
}

func (a *app) quarantineListCommand() *cobra.Command {
	filter := poison.Filter{Limit: 100}
	after, replayed := 0, false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List entries, in the order of their IDs",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			filter.AfterID = int64(after)
			list := q.List
			if replayed {
				list = q.Replayed
			}
			entries, err := list(ctx, filter)
			if err != nil {
				return err
			}
			out := entriesJSON{Entries: []entryJSON{}}
			var rows [][]string
			for _, e := range entries {
				out.Entries = append(out.Entries, entryOf(&e))
				rows = append(rows, []string{
					fmt.Sprint(e.ID), e.Consumer, e.Topic, e.MessageID, at(e.LastFailedAt), fmt.Sprint(e.Attempts), e.Reason, e.State, e.Error,
				})
			}
			if len(entries) == 0 && replayed {
				return a.print(out, "No replayed message waits for its consumer.\n")
			}
			if len(entries) == 0 {
				return a.print(out, "No message in quarantine matches.\n")
			}
			text := table(a.width, []string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "FAILED (UTC)", "TRIES", "REASON", "STATE", "ERROR"}, rows)
			if len(entries) == filter.Limit {
				out.Next = entries[len(entries)-1].ID
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "list the replayed and edited messages that were not handled since, instead")
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) quarantineShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one entry with its message, also after it was replayed or discarded",
		Args:  oneID,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			e, err := q.Get(ctx, ids[0])
			if err != nil {
				return err
			}
			j := entryOf(&e)
			text := entryText(&j)
			if e.Message != nil {
				j.Metadata, j.content = e.Message.Metadata, contentOf(e.Message.Payload)
				text += messageText(e.Message.Metadata, e.Message.Payload)
			}
			return a.print(j, text)
		}),
	}
}

// entryText renders an entry without its message.
func entryText(e *entryJSON) string {
	blocks := ""
	if e.BlocksKey {
		blocks = "later messages of its ordering key wait for it"
	}
	return fields(
		"entry", fmt.Sprint(e.ID), "consumer", e.Consumer, "topic", e.Topic, "message id", e.MessageID, "tenant", e.Tenant,
		"state", e.State, "reason", e.Reason, "error", e.Error, "error type", e.ErrorType, "group", e.Group,
		"attempts", fmt.Sprint(e.Attempts), "crashes", number(int64(e.Crashes)), "replays", number(int64(e.Replays)),
		"blocks", blocks, "damaged", e.Damaged, "edited from", number(e.EditedFrom), "replay", number(e.ReplayID),
		"stored", at(e.CreatedAt), "first failed", at(e.FirstFailedAt), "last failed", at(e.LastFailedAt), "finished", at(e.FinishedAt),
	)
}

// number renders n, or "" if it is zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (a *app) quarantineCountCommand() *cobra.Command {
	var filter poison.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count entries",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			n, err := q.Count(ctx, filter)
			if err != nil {
				return err
			}
			return a.print(countJSON{n}, fmt.Sprintln(n))
		}),
	}
	addQuarantineFilter(cmd, &filter)
	return cmd
}

// oneID accepts exactly one argument.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s needs one ID, and got %d arguments", cmd.CommandPath(), len(args))
	}
	_, err := parseIDs(args)
	return err
}
