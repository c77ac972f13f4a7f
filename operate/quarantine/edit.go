package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
)

// EditedFrom is metadata of an edited message: the id of the message that it replaces.
const EditedFrom = meta.EditedFrom

// ErrIDInUse means that the consumer already knows a message with the id of the edited one.
var ErrIDInUse = errors.New("the consumer knows a message of that id")

// EditOptions configures [Entries.Edit]. By default, the edited message is due immediately.
type EditOptions struct {
	// KeepQuarantined leaves the edited message in quarantine, for review and a later replay.
	KeepQuarantined bool
}

// Edit replaces an entry in quarantine with another message. change modifies a copy of the entry's
// message, with a new id, and the old one in the metadata [EditedFrom]. It may set another id,
// which must be unknown to the consumer ([ErrIDInUse]).
//
// The old entry is discarded, and the handler is not called for a late copy of its message. Edit
// returns the ID of the new entry, which has the same consumer. It returns [operate.ErrNotFound] if
// the old entry is not in quarantine, the error of change unchanged, and without
// EditOptions.KeepQuarantined [ErrNotRunning] if the consumer is not running.
func (q *Entries) Edit(
	ctx context.Context, act operate.Act, id int64, change func(msg *message.Message) error, opts EditOptions,
) (int64, error) {
	err := act.ValidateLoss()
	if change == nil {
		err = errors.Join(err, errors.New("change is nil"))
	}
	if err != nil {
		return 0, fmt.Errorf("quarantine: edit: %w", err)
	}
	old, err := q.table.get(ctx, id)
	switch {
	case err != nil:
		return 0, fmt.Errorf("quarantine: edit: %w", err)
	case old.State != parkedrows.Quarantined:
		return 0, fmt.Errorf("quarantine: edit: message %d: %w in quarantine, but %s", id, operate.ErrNotFound, old.State)
	case old.MessageErr != nil:
		return 0, fmt.Errorf("quarantine: edit %d: %w", id, old.MessageErr)
	}
	if !opts.KeepQuarantined {
		if err := q.checkRunning(ctx, operate.Filter{IDs: []int64{id}}); err != nil {
			return 0, fmt.Errorf("quarantine: edit %d: %w", id, err)
		}
	}
	msg := message.NewMessage(meta.NewID(), slices.Clone(old.Message.Payload))
	maps.Copy(msg.Metadata, old.Message.Metadata)
	if err := change(msg); err != nil {
		return 0, fmt.Errorf("quarantine: edit %d: %w", id, err)
	}
	if msg.UUID == "" || parkedrows.CheckName(msg.UUID) != nil {
		return 0, fmt.Errorf("quarantine: edit %d: the new id is empty, longer than %d bytes or no valid text", id, parkedrows.MaxName)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[EditedFrom] = old.Message.UUID
	newID, err := q.table.edit(ctx, act, old, msg, opts.KeepQuarantined)
	if err != nil {
		return 0, fmt.Errorf("quarantine: edit: %w", err)
	}
	q.edited.Add(1, 0)
	return newID, nil
}

// edit discards the old entry, and inserts msg for the same consumer and ordering key. It returns
// the ID of the new entry.
func (t *table) edit(ctx context.Context, act operate.Act, old Entry, msg *message.Message, keepQuarantined bool) (id int64, err error) {
	err = t.parked.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return []int64{old.ID}, nil }, func(tx *sql.Tx) error {
		err := t.discardIn(ctx, tx, act, "edit", old.ID)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("message %d: %w in quarantine", old.ID, operate.ErrNotFound)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", old.ID, err)
		}
		var used bool
		if err := tx.QueryRowContext(ctx, t.sql.idInUse, msg.UUID, old.Consumer).Scan(&used); err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%w: %q", ErrIDInUse, msg.UUID)
		}
		err = tx.QueryRowContext(ctx, t.sql.insertEdited, append([]any{
			old.ID, msg.UUID, parkedrows.TenantOf(msg), parkedrows.Digest(msg), parkedrows.Encode(msg), keepQuarantined,
		}, parkedrows.LabelsOf(msg)...)...).Scan(&id)
		if err != nil {
			return fmt.Errorf("insert the edited message: %w", err)
		}
		failpoint.Hit("operate/quarantine/edited")
		return t.record(ctx, tx, act, "edited", id, old.Consumer, msg.UUID)
	})
	if err != nil {
		return 0, err
	}
	return id, nil
}
