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

// Color is the color of the banner with the environment's name.
type Color string

// The colors.
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

	// Authorize returns who makes a request, or an error if that person may not do
	// the action. It is called for each request, and once more for each button that a
	// page shows only to those who may use it. actor is written to the audit log, and
	// must not be empty for an action that changes something. The error is logged and
	// not shown. A panic refuses the request. Required; see [ReadOnly].
	Authorize func(r *http.Request, action Action) (actor string, err error)

	// Payload is called before a message is shown or downloaded. It gets a copy of the
	// message, and returns what may be seen of its payload and metadata; or an error,
	// whose text is shown in place of the message. A message that Payload changes or
	// refuses cannot be edited. Defaults to showing everything.
	Payload func(r *http.Request, topic string, msg *message.Message) (*message.Message, error)

	// Environment is the name in the banner, such as "production". Defaults to no
	// banner. Color is the color of the banner. Defaults to Gray.
	Environment string
	Color       Color

	// InboxRetention is deadletter.Config.InboxRetention: older messages are replayed
	// only with force. Defaults to 7 days.
	InboxRetention time.Duration

	// ReplayToAbsent is poison.Config.ReplayToAbsent: it allows replays to consumers that
	// are not running. Defaults to false.
	ReplayToAbsent bool

	// MaxEdit is the size in bytes of the largest payload that can be edited. Defaults
	// to 1 MiB.
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

// longestEnvironment fits beside the title on a phone.
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
