package console

import (
	"errors"
	"net/http"
)

// Action names something that a person can see or do in the console. Config.Authorize
// allows or refuses it.
type Action string

// Actions. All except Look and ReadMessage change something.
const (
	// Look shows lists, counts, errors and states.
	Look Action = "look"

	// ReadMessage shows the payload and the metadata of a message.
	ReadMessage Action = "read message"

	// RetryPending makes messages of the outbox due immediately. CancelPending turns them
	// into dead letters.
	RetryPending  Action = "retry pending"
	CancelPending Action = "cancel pending"

	// PausePending makes the messages of a topic or a tenant wait in the outbox.
	// ResumePending ends the wait.
	PausePending  Action = "pause pending"
	ResumePending Action = "resume pending"

	// ReplayDead puts dead letters back into the outbox, DiscardDead deletes them,
	// and ReleaseKey unblocks an ordering key.
	ReplayDead  Action = "replay dead"
	DiscardDead Action = "discard dead"
	ReleaseKey  Action = "release key"

	// ReplaySent puts copies of sent messages into the outbox.
	ReplaySent Action = "replay sent"

	// RunParked makes parked messages due immediately. CancelParked moves them into
	// quarantine. DiscardParked discards them: their handlers never run.
	RunParked     Action = "run parked"
	CancelParked  Action = "cancel parked"
	DiscardParked Action = "discard parked"

	// ReplayQuarantined gives entries back to their consumer. It is also needed to resume a
	// replay of entries. EditQuarantined replaces an entry with an edited copy.
	// DiscardQuarantined discards an entry: the handler never runs for its message.
	ReplayQuarantined  Action = "replay quarantined"
	EditQuarantined    Action = "edit quarantined"
	DiscardQuarantined Action = "discard quarantined"

	// NoteGroup stores a note on a failure group of the quarantine.
	NoteGroup Action = "note group"

	// Stop stops a running change. The change may have been started by another person.
	Stop Action = "stop"
)

// Changes reports whether the action changes something.
func (a Action) Changes() bool { return a != Look && a != ReadMessage }

// errReadOnly is the error that [ReadOnly] returns.
var errReadOnly = errors.New("this console is read-only")

// ReadOnly is a value for Config.Authorize. With it, everybody who can reach the
// console can look at everything, including messages, and nobody can change anything.
func ReadOnly(_ *http.Request, action Action) (actor string, err error) {
	if action.Changes() {
		return "", errReadOnly
	}
	return "", nil
}
