package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/schema"
)

// Color is the color of the banner that contains the environment's name.
type Color string

// Colors of the banner.
const (
	Gray   Color = "gray"
	Red    Color = "red"
	Orange Color = "orange"
	Green  Color = "green"
	Blue   Color = "blue"
	Purple Color = "purple"
)

// Config configures a [Console]. Only Authorize is required.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Authorize returns the name of the person who makes a request, or an error if this person may
	// not do the action. It is called at least once for each request, and for each button that only
	// some people see. The name is written to the audit log, and must not be "" for a change. The
	// error is logged, but not shown. If Authorize panics, the request is refused. Required; see
	// [ReadOnly].
	Authorize func(r *http.Request, action Action) (actor string, err error)

	// Payload is called before a message is shown or downloaded, with a copy, and returns what the
	// person may see of payload and metadata. The page shows the text of its error in place of the
	// message. A message that it changes or refuses cannot be edited. Defaults to nil: everything
	// is shown.
	Payload func(r *http.Request, topic string, msg *message.Message) (*message.Message, error)

	// Environment is the name in the banner, such as "production", and Color its color. Default to
	// no banner and Gray.
	Environment string
	Color       Color

	// InboxRetention is operate.Config.InboxRetention: the replay of a message that was sent longer
	// ago needs force. Defaults to 7 days.
	InboxRetention time.Duration

	// ReplayToAbsent is operate.Config.ReplayToAbsent. It allows replays to consumers that are not
	// running. Defaults to false.
	ReplayToAbsent bool

	// MaxEdit is the maximum size of a payload that can be edited, in bytes. Defaults to 1 MiB.
	MaxEdit int

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Color = cmp.Or(c.Color, Gray)
	c.MaxEdit = cmp.Or(c.MaxEdit, 1<<20)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

// A longer name in bytes would not fit beside the title on a phone.
const longestEnvironment = 40

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Authorize == nil {
		errs = append(errs, errors.New("Authorize is nil: set a function that knows your users, or console.ReadOnly"))
	}
	if colors := []Color{Gray, Red, Orange, Green, Blue, Purple}; !slices.Contains(colors, c.Color) {
		errs = append(errs, fmt.Errorf("Color is %q, none of %v", c.Color, colors))
	}
	if len(c.Environment) > longestEnvironment || strings.TrimSpace(c.Environment) != c.Environment {
		errs = append(errs, fmt.Errorf("Environment is %q: longer than %d bytes, or with spaces around it", c.Environment, longestEnvironment))
	}
	if c.InboxRetention < 0 {
		errs = append(errs, fmt.Errorf("InboxRetention is %v: negative", c.InboxRetention))
	}
	if c.MaxEdit < 0 {
		errs = append(errs, fmt.Errorf("MaxEdit is %d: negative", c.MaxEdit))
	}
	return errors.Join(errs...)
}

// Action is what a person can see or do, if Config.Authorize allows it.
type Action string

// Actions. All except Look and ReadMessage change something.
const (
	// Look shows lists, counts, errors and states.
	Look Action = "look"

	// ReadMessage shows the payload and the metadata of a message.
	ReadMessage Action = "read message"

	// RetryPending makes messages of the outbox due now, CancelPending turns them into dead
	// letters.
	RetryPending  Action = "retry pending"
	CancelPending Action = "cancel pending"

	// PausePending makes messages of a topic or a tenant wait in the outbox, until ResumePending.
	PausePending  Action = "pause pending"
	ResumePending Action = "resume pending"

	// ReplayDead puts dead letters back, DiscardDead deletes them, ReleaseKey unblocks a key.
	ReplayDead  Action = "replay dead"
	DiscardDead Action = "discard dead"
	ReleaseKey  Action = "release key"

	// ReplaySent puts copies of sent messages into the outbox.
	ReplaySent Action = "replay sent"

	// RunParked makes parked messages due immediately, CancelParked moves them into quarantine, and
	// DiscardParked discards them: their handlers never run.
	RunParked     Action = "run parked"
	CancelParked  Action = "cancel parked"
	DiscardParked Action = "discard parked"

	// PauseConsumer lets a consumer start no messages. ResumeConsumer ends the pause.
	PauseConsumer  Action = "pause consumer"
	ResumeConsumer Action = "resume consumer"

	// ReplayQuarantined gives entries back to their consumer, also to resume a replay.
	// EditQuarantined replaces an entry with an edited copy. DiscardQuarantined discards an entry:
	// its handler never runs.
	ReplayQuarantined  Action = "replay quarantined"
	EditQuarantined    Action = "edit quarantined"
	DiscardQuarantined Action = "discard quarantined"

	// NoteGroup stores a note on a failure group of the quarantine.
	NoteGroup Action = "note group"

	// Stop stops a running change, also of another person.
	Stop Action = "stop"
)

// Changes reports whether the action changes something.
func (a Action) Changes() bool { return a != Look && a != ReadMessage }

var errReadOnly = errors.New("this console is read-only")

// ReadOnly is a value for Config.Authorize: everybody who can reach the console can look at
// everything, including messages, and nobody can change anything.
func ReadOnly(_ *http.Request, action Action) (actor string, err error) {
	if action.Changes() {
		return "", errReadOnly
	}
	return "", nil
}
