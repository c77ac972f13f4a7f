package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

const (
	defaultMaxPayload = 16 << 20

	// payloadLimit is the maximum value of MaxPayload, in bytes. PostgreSQL accepts
	// statements of 1 GiB, and encoding a payload may double its size.
	payloadLimit = 256 << 20
)

// Config configures an [Outbox]. The zero value is ready for use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults
	// to PostgreSQL and "once_".
	Schema schema.Config

	// MaxPayload is the maximum size of a payload in bytes, up to 256 MiB. Set it to the
	// limit of the broker. Otherwise a message that is too large for the broker is stored,
	// and becomes a dead letter later. Defaults to 16 MiB, RabbitMQ's default since 4.0.
	MaxPayload int

	// Check returns an error for a message that the broker can never accept. Publish then
	// refuses the message with ErrInvalid, and the message does not become a dead letter.
	// Publish calls Check for each message, after its own checks. Set Check to rabbit.Check
	// if the forwarder sends to RabbitMQ. Check must not change the message, and must be
	// safe for concurrent use. Its error must not contain secrets. Defaults to nil: the
	// limits of the broker are not checked.
	Check func(topic string, msg *message.Message) error

	// Parameters makes Publish send the values of rows to PostgreSQL as parameters of the
	// statement. With pgx, Publish always does this. Without Parameters, other drivers get
	// the values as constants in the statement. Constants have two advantages: lib/pq sends
	// the statement in one round trip instead of two, and package lazytx sends it together
	// with COMMIT. But if a statement with constants fails or is slow, PostgreSQL may write
	// it, with the payload, to the log of the server. Defaults to false.
	Parameters bool

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default
	// to OpenTelemetry's global providers, which do nothing until you set others.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.MaxPayload = cmp.Or(c.MaxPayload, defaultMaxPayload)
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.MaxPayload < 1 || c.MaxPayload > payloadLimit {
		errs = append(errs, fmt.Errorf("MaxPayload is %d, not in 1..%d", c.MaxPayload, payloadLimit))
	}
	return errors.Join(errs...)
}

// Outbox stores messages in the tables of one schema.Config. It has no state, so you
// can use one Outbox in any number of goroutines and for several databases.
type Outbox struct {
	config  Config
	dialect dialect.Dialect
	insert  insert

	instruments *instruments
}

// New returns an Outbox. If config is invalid, the error names every invalid field.
func New(config Config) (*Outbox, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fields.Refused("outbox", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Outbox{config: config, dialect: d, insert: newInsert(d), instruments: newInstruments(config)}, nil
}

// standard returns the Outbox that the package functions use, for PostgreSQL and the
// prefix "once_". The Outbox is created at the first call, so that a service can set
// OpenTelemetry's global providers first.
var standard = sync.OnceValue(mustNew)

func mustNew() *Outbox {
	o, err := New(Config{})
	if err != nil {
		panic(err) // the zero Config is valid, so this cannot happen
	}
	return o
}
