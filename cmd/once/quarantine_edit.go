package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// editJSON is the output of quarantine edit.
type editJSON struct {
	ID         int64 `json:"id"` // of the new entry
	EditedFrom int64 `json:"edited_from"`
}

// edit is what quarantine edit changes in a message.
type edit struct {
	payload     []byte // nil leaves it
	set, remove []string
	id          string
}

// check refuses an edit that changes nothing, and metadata that cannot be set.
func (e edit) check(file string) error {
	for _, pair := range e.set {
		if key, _, ok := strings.Cut(pair, "="); !ok || key == "" {
			return usagef("--set %q: must be name=value", pair)
		}
	}
	if file == "" && len(e.set)+len(e.remove) == 0 && e.id == "" {
		return usagef("nothing to change: use --payload, --set, --remove or --new-id")
	}
	return nil
}

// apply changes msg.
func (e edit) apply(msg *message.Message) error {
	if e.payload != nil {
		msg.Payload = e.payload
	}
	for _, pair := range e.set {
		key, text, _ := strings.Cut(pair, "=")
		msg.Metadata.Set(key, text)
	}
	for _, key := range e.remove {
		if _, ok := msg.Metadata[key]; !ok {
			return fmt.Errorf("the message has no metadata %q to remove", key)
		}
		delete(msg.Metadata, key)
	}
	if e.id != "" {
		msg.UUID = e.id
	}
	return nil
}

func (a *app) quarantineEditCommand() *cobra.Command {
	var (
		config poison.Config
		change edit
		file   string
		opts   poison.EditOptions
	)
	cmd := &cobra.Command{
		Use:   "edit ID",
		Short: "Replace an entry by a changed message, and replay it; needs --why",
		Long: `Replace an entry by a changed message, which has a new id and is handled at once. The
old entry is discarded.

  once quarantine show 17 --json | jq -j .payload > body.json
  once quarantine edit 17 --payload body.json --why "the amount was negative"`,
		Args: oneID,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(a.needWhy(true), change.check(file)); err != nil {
			return err
		}
		if file != "" {
			payload, err := a.read(file)
			if err != nil {
				return err
			}
			change.payload = payload
		}
		return a.withQuarantine(&config, func(ctx context.Context, q *poison.Quarantine, args []string) error {
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			id, err := q.Edit(ctx, who, ids[0], change.apply, opts)
			if err != nil {
				return absent(err)
			}
			state := "its consumer handles it now"
			if opts.KeepQuarantined {
				state = "it stays in quarantine"
			}
			return a.print(editJSON{ID: id, EditedFrom: ids[0]}, fmt.Sprintf("Entry %d replaces entry %d; %s.\n", id, ids[0], state))
		})(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "payload", "", "file with the new payload, or - for standard input")
	flags.StringArrayVar(&change.set, "set", nil, "metadata to set, as name=value; may be repeated")
	flags.StringArrayVar(&change.remove, "remove", nil, "metadata to remove; may be repeated")
	flags.StringVar(&change.id, "new-id", "", "id of the new message (default: a new one)")
	flags.BoolVar(&opts.KeepQuarantined, "keep", false, "leave the new entry in quarantine, for a later replay")
	flags.BoolVar(&config.ReplayToAbsent, "to-absent", false, "also if no process runs the consumer")
	flags.StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

// read returns the content of a file, or of standard input for "-".
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

// exportJSON is the output of the export commands that write to a file.
type exportJSON struct {
	Exported int    `json:"exported"`
	File     string `json:"file"`
}

// export writes to --file, or to standard output.
func (a *app) export(file string, write func(w io.Writer) (int, error)) (err error) {
	if file == "" {
		if a.settings.json {
			return usagef("--json needs --file: without it the exported lines are the output")
		}
		_, err := write(a.stdout)
		return err
	}
	// A new file only: an export must not replace another one.
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
		filter poison.Filter
		file   string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write entries as JSON lines, with their messages",
		Long: `Write entries as JSON lines, with their messages: protect the file as you protect the
messages. Without filters all entries are written.`,
		Args: noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			return a.export(file, func(w io.Writer) (int, error) { return q.Export(ctx, filter, w) })
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().StringVar(&file, "file", "", "new file to write (default: standard output)")
	return cmd
}

// importJSON is the output of quarantine import.
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
		return a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			who, err := a.poisonAct()
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
