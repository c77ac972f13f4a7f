package poison

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/messageid"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
)

// EditedFrom is the metadata key under which an edited message has the id of
// the one that it stands for.
const EditedFrom = meta.EditedFrom

// EditOptions say what an edited message does first. The zero value: it is
// handled at once.
type EditOptions struct {
	// KeepQuarantined leaves the edited message in quarantine, to be looked at and
	// replayed later.
	KeepQuarantined bool
}

// Edit puts another message in the place of an entry that is in quarantine:
// what change makes of a copy of its message. That copy has a new id, and the
// old one in its metadata as [EditedFrom]; change may set an id of its own,
// which the consumer must not know ([ErrIDInUse]).
//
// The old entry is discarded, and a late copy of its message is not run. The
// new one goes to the same consumer. Edit returns its ID, [ErrNotFound] if the
// entry is not in quarantine, and without EditOptions.KeepQuarantined [ErrNotRunning] if
// nobody runs the consumer. An error of change is returned as it is.
func (s *Quarantine) Edit(
	ctx context.Context, act Act, id int64, change func(msg *message.Message) error, opts EditOptions,
) (int64, error) {
	err := errors.Join(parked.Act(act).Validate(), reasoned(act))
	if change == nil {
		err = errors.Join(err, errors.New("change is nil"))
	}
	if err != nil {
		return 0, fmt.Errorf("poison: edit: %w", err)
	}
	old, err := s.parked.Get(ctx, id)
	switch {
	case err != nil:
		return 0, fmt.Errorf("poison: edit: %w", err)
	case old.State != parked.Quarantined:
		return 0, fmt.Errorf("poison: edit: %w in quarantine: %d is %s", ErrNotFound, id, old.State)
	case old.MessageErr != nil:
		return 0, fmt.Errorf("poison: edit %d: %w", id, old.MessageErr)
	}
	if !opts.KeepQuarantined {
		if err := s.running(ctx, parked.Filter{IDs: []int64{id}}); err != nil {
			return 0, fmt.Errorf("poison: edit %d: %w", id, err)
		}
	}
	msg := message.NewMessage(messageid.New(), slices.Clone(old.Message.Payload))
	maps.Copy(msg.Metadata, old.Message.Metadata)
	if err := change(msg); err != nil {
		return 0, fmt.Errorf("poison: edit %d: %w", id, err)
	}
	if !usable(msg.UUID) {
		return 0, fmt.Errorf("poison: edit %d: the new id is empty, longer than %d bytes or no valid text", id, maxID)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[EditedFrom] = old.Message.UUID
	made, err := s.parked.Edit(ctx, parked.Act(act), old, msg, opts.KeepQuarantined)
	if err != nil {
		return 0, fmt.Errorf("poison: edit: %w", err)
	}
	s.instruments.edited.Add(1, 0)
	return made, nil
}

const maxID = 255

// usable says whether the inbox can keep an id.
func usable(id string) bool {
	return id != "" && parked.CheckName(id) == nil
}
