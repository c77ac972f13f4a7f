package console

import (
	"errors"
	"net/http"
)

// Action is something that a person wants to see or to do, for Config.Authorize.
type Action string

// The actions. All but Look and ReadMessage change something.
const (
	// Look shows lists, counts, errors and states.
	Look Action = "look"

	// ReadMessage shows the payload and the metadata of a message.
	ReadMessage Action = "read message"

	// RetryPending makes messages of the outbox due now, CancelPending turns them into
	// dead letters.
	RetryPending  Action = "retry pending"
	CancelPending Action = "cancel pending"

	// PausePending lets the messages of a topic or a tenant wait in the outbox,
	// ResumePending ends this.
	PausePending  Action = "pause pending"
	ResumePending Action = "resume pending"

	// ReplayDead puts dead letters back into the outbox, DiscardDead deletes them,
	// and ReleaseKey unblocks an ordering key.
	ReplayDead  Action = "replay dead"
	DiscardDead Action = "discard dead"
	ReleaseKey  Action = "release key"

	// ReplaySent puts copies of sent messages into the outbox.
	ReplaySent Action = "replay sent"

	// RunParked makes parked messages due now, CancelParked moves them into quarantine,
	// and DiscardParked ends them.
	RunParked     Action = "run parked"
	CancelParked  Action = "cancel parked"
	DiscardParked Action = "discard parked"

	// ReplayQuarantined gives entries back to their consumer, also by resuming a
	// replay. EditQuarantined replaces an entry, DiscardQuarantined ends it.
	ReplayQuarantined  Action = "replay quarantined"
	EditQuarantined    Action = "edit quarantined"
	DiscardQuarantined Action = "discard quarantined"

	// NoteGroup leaves a note on a failure group of the quarantine.
	NoteGroup Action = "note group"

	// Stop stops a change that runs, whoever began it.
	Stop Action = "stop"
)

// Changes reports whether the action changes something.
func (a Action) Changes() bool { return a != Look && a != ReadMessage }

// errReadOnly is the error of [ReadOnly].
var errReadOnly = errors.New("this console is read-only")

// ReadOnly is a value for Config.Authorize. It lets everybody who reaches the console
// look at everything, with the messages, and lets nobody change anything.
func ReadOnly(_ *http.Request, action Action) (actor string, err error) {
	if action.Changes() {
		return "", errReadOnly
	}
	return "", nil
}
