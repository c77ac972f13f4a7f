package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

// quarantineConditions are the flags of addQuarantineFilter that select entries.
var quarantineConditions = []string{
	"consumer", "topic", "message-id", "tenant", "aggregate-type", "aggregate-id", "event-type",
	"reason", "error-type", "group", "failed-after", "failed-before",
}

func addQuarantineFilter(cmd *cobra.Command, f *operate.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only of the message with this id")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
	flags.Var(oneOf(&f.Reason, chain.ReasonExhausted, chain.ReasonFailed, chain.ReasonPermanent, chain.ReasonCrashed,
		chain.ReasonInvalidID, chain.ReasonCollision, chain.ReasonUndecodable, chain.ReasonGap, chain.ReasonStale,
		chain.ReasonCancelled),
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

func (a *app) quarantineListCommand() *cobra.Command {
	filter := operate.Filter{Limit: 100}
	after, replayed := 0, false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List entries, in the order of their IDs",
		Args:  noArgs,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, _ []string) error {
			list, none := q.List, "No message in quarantine matches."
			if replayed {
				list, none = q.Replayed, "No replayed message waits for its consumer."
			}
			out := entriesJSON{Entries: []entryJSON{}}
			var rows [][]string
			next, err := eachRow(ctx, filter, after, list, func(e *quarantine.Entry) {
				out.Entries = append(out.Entries, entryOf(e))
				rows = append(rows, []string{
					fmt.Sprint(e.ID), e.Consumer, e.Topic, e.MessageID, at(e.LastFailedAt), fmt.Sprint(e.Attempts), e.Reason, e.State, e.Error,
				})
			})
			if err != nil {
				return err
			}
			out.Next = next
			return a.printList(out, next,
				[]string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "FAILED (UTC)", "TRIES", "REASON", "STATE", "ERROR"}, rows, none)
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "list the replayed and edited messages that were not handled since, instead")
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

// Lists leave out Stack, Metadata and the payload.
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
	Stack         string            `json:"stack,omitempty"`
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

type entriesJSON struct {
	Entries []entryJSON `json:"entries"`
	Next    int64       `json:"next,omitempty"` // --after of the next page
}

func entryOf(e *quarantine.Entry) entryJSON {
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

func (a *app) quarantineShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show one entry with its message, also after it was replayed or discarded",
		Args:  oneID,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, args []string) error {
			e, err := named(ctx, args, q.Get)
			if err != nil {
				return err
			}
			j := entryOf(&e)
			j.Stack = e.Stack
			text := entryText(&j)
			if e.Stack != "" {
				text += "stack:\n" + strings.TrimRight(lines(e.Stack), "\n") + "\n"
			}
			if e.Message != nil {
				j.Metadata, j.content = e.Message.Metadata, contentOf(e.Message.Payload)
				text += messageText(e.Message.Metadata, e.Message.Payload)
			}
			return a.print(j, text)
		}),
	}
}

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

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// named returns the row whose ID is the only argument.
func named[Row any](ctx context.Context, args []string, get func(context.Context, int64) (Row, error)) (row Row, err error) {
	ids, err := parseIDs(args)
	if err == nil {
		row, err = get(ctx, ids[0])
	}
	return row, err
}

func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s needs one ID, and got %d arguments", cmd.CommandPath(), len(args))
	}
	_, err := parseIDs(args)
	return err
}

func (a *app) read(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(a.stdin)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{err}
	}
	return content, nil
}

type exportJSON struct {
	Exported int    `json:"exported"`
	File     string `json:"file"`
}

func (a *app) export(file string, write func(w io.Writer) (int, error)) (err error) {
	if file == "" {
		if a.settings.json {
			return usagef("--json needs --file: without it the exported lines are the output")
		}
		_, err := write(a.stdout)
		return err
	}
	// An export cannot replace another one.
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usageError{err}
	}
	n, err := write(out)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("%s has %s and is not complete: %w", file, counted(n, "message", "messages"), err)
	}
	return a.print(exportJSON{n, file}, fmt.Sprintf("Exported %s to %s.\n", counted(n, "message", "messages"), file))
}

func (a *app) quarantineExportCommand() *cobra.Command {
	var (
		filter operate.Filter
		file   string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write entries as JSON lines, with their messages",
		Long: `Write entries as JSON lines, with their messages: protect the file as you protect the
messages. Without filters all entries are written.`,
		Args: noArgs,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, _ []string) error {
			return a.export(file, func(w io.Writer) (int, error) { return q.Export(ctx, filter, w) })
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().StringVar(&file, "file", "", "new file to write (default: standard output)")
	return cmd
}

type importJSON struct {
	Imported int `json:"imported"`
	Known    int `json:"known"`
}

func (a *app) quarantineImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read the output of export into this quarantine; known entries stay as they are",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one file, or - for standard input", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		input, err := a.read(args[0])
		if err != nil {
			return err
		}
		return with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, _ []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			var out importJSON
			out.Imported, out.Known, err = q.Import(ctx, who, bytes.NewReader(input))
			if err != nil {
				return err
			}
			return a.print(out, fmt.Sprintf("Imported %s; %d were known.\n", counted(out.Imported, "message", "messages"), out.Known))
		})(cmd, args)
	}
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}
