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
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// Authorize returns the name of the person who makes a request, or an error if this
	// person is not allowed to do the action. It is called at least once for each request,
	// and once for each button that a page shows only to people who are allowed to use it.
	// The name is written to the audit log, and must not be "" for an action that changes
	// something. The error is logged, but not shown. If Authorize panics, the request is
	// refused. Authorize is required; see [ReadOnly].
	Authorize func(r *http.Request, action Action) (actor string, err error)

	// Payload is called before a message is shown or downloaded. It gets a copy of the
	// message, and returns a message with the payload and the metadata that the person may
	// see. If it returns an error, the page shows the text of the error in place of the
	// message. A message that Payload changes or refuses cannot be edited. Defaults to nil:
	// everything is shown.
	Payload func(r *http.Request, topic string, msg *message.Message) (*message.Message, error)

	// Environment is the name in the banner, such as "production". Color is the color of
	// the banner. Environment defaults to "", which means no banner. Color defaults to
	// Gray.
	Environment string
	Color       Color

	// InboxRetention is the same as deadletter.Config.InboxRetention. Messages that were
	// sent longer ago are replayed only with force. Defaults to 7 days.
	InboxRetention time.Duration

	// ReplayToAbsent is the same as poison.Config.ReplayToAbsent. It allows replays to
	// consumers that are not running. Defaults to false.
	ReplayToAbsent bool

	// MaxEdit is the maximum size of a payload that can be edited, in bytes. Defaults to 1
	// MiB.
	MaxEdit int

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
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

// longestEnvironment is the maximum length of Environment, in bytes. A longer name
// would not fit beside the title on a phone.
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
