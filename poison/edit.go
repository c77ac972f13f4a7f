package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/messageid"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
)

// EditedFrom is a metadata key of an edited message. Its value is the id of the message
// that the edited message replaces.
const EditedFrom = meta.EditedFrom

// ErrIDInUse means that the consumer already knows a message with the same id as the
// edited message.
var ErrIDInUse = errors.New("the consumer knows a message of that id")

// EditOptions configures [Quarantine.Edit]. With the zero value, the edited message is
// due immediately.
type EditOptions struct {
	// KeepQuarantined leaves the edited message in quarantine, for review and a
	// later replay.
	KeepQuarantined bool
}

// Edit replaces an entry in quarantine with another message. The function change
// modifies a copy of the entry's message. The copy has a new id, and its metadata
// contains the old id under the key [EditedFrom]. The function may set another id,
// which must be unknown to the consumer. Otherwise Edit returns [ErrIDInUse].
//
// The old entry is discarded, and the handler is not called for a late copy of its
// message. The new entry has the same consumer, and Edit returns its ID. Edit returns
// [ErrNotFound] if the old entry is not in quarantine. Without
// EditOptions.KeepQuarantined, it returns [ErrNotRunning] if the consumer is not
// running. If the function change returns an error, Edit returns this error unchanged.
func (q *Quarantine) Edit(
	ctx context.Context, act Act, id int64, change func(msg *message.Message) error, opts EditOptions,
) (int64, error) {
	err := act.ValidateLoss()
	if change == nil {
		err = errors.Join(err, errors.New("change is nil"))
	}
	if err != nil {
		return 0, fmt.Errorf("poison: edit: %w", err)
	}
	old, err := q.table.get(ctx, id)
	switch {
	case err != nil:
		return 0, fmt.Errorf("poison: edit: %w", err)
	case old.State != parked.Quarantined:
		return 0, fmt.Errorf("poison: edit: %w in quarantine: %d is %s", ErrNotFound, id, old.State)
	case old.MessageErr != nil:
		return 0, fmt.Errorf("poison: edit %d: %w", id, old.MessageErr)
	}
	if !opts.KeepQuarantined {
		if err := q.checkRunning(ctx, Filter{IDs: []int64{id}}); err != nil {
			return 0, fmt.Errorf("poison: edit %d: %w", id, err)
		}
	}
	msg := message.NewMessage(messageid.New(), slices.Clone(old.Message.Payload))
	maps.Copy(msg.Metadata, old.Message.Metadata)
	if err := change(msg); err != nil {
		return 0, fmt.Errorf("poison: edit %d: %w", id, err)
	}
	if msg.UUID == "" || parked.CheckName(msg.UUID) != nil {
		return 0, fmt.Errorf("poison: edit %d: the new id is empty, longer than %d bytes or no valid text", id, parked.MaxName)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[EditedFrom] = old.Message.UUID
	newID, err := q.table.edit(ctx, act, old, msg, opts.KeepQuarantined)
	if err != nil {
		return 0, fmt.Errorf("poison: edit: %w", err)
	}
	q.instruments.edited.Add(1, 0)
	return newID, nil
}

// edit discards the old entry. It inserts the new message msg, which has its own id,
// for the same consumer and with the same ordering key. It returns the ID of the new
// entry.
func (t *table) edit(ctx context.Context, act Act, old Entry, msg *message.Message, keepQuarantined bool) (id int64, err error) {
	err = t.parked.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return []int64{old.ID}, nil }, func(tx *sql.Tx) error {
		err := t.discardIn(ctx, tx, act, "edit", old.ID)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w in quarantine: %d", ErrNotFound, old.ID)
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
			old.ID, msg.UUID, parked.TenantOf(msg), parked.Digest(msg), parked.Encode(msg), keepQuarantined,
		}, parked.LabelsOf(msg)...)...).Scan(&id)
		if err != nil {
			return fmt.Errorf("insert the edited message: %w", err)
		}
		failpoint.Hit("poison/edited")
		return t.record(ctx, tx, act, "edited", id, old.Consumer, msg.UUID)
	})
	if err != nil {
		return 0, err
	}
	return id, nil
}
