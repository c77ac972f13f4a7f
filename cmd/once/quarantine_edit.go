package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// editJSON is the JSON output of "once quarantine edit".
type editJSON struct {
	ID         int64 `json:"id"` // ID of the new entry
	EditedFrom int64 `json:"edited_from"`
}

// edit contains the changes that "once quarantine edit" makes in a message.
type edit struct {
	payload     []byte // new payload; nil keeps the old payload
	set, remove []string
	id          string
}

// check returns an error if the edit changes nothing, or if an element of e.set does
// not have the form name=value. The parameter file is the value of the flag --payload.
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

// apply makes the changes in msg.
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
