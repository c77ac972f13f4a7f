package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

const (
	defaultMaxPayload = 16 << 20

	// PostgreSQL takes statements of 1 GiB, and a payload may double on its
	// way there.
	mostMaxPayload = 256 << 20
)

// Config is what an [Outbox] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// MaxPayload is the size in bytes of the largest payload that is taken, at
	// most 256 MiB. It should be what the broker takes, or a message is stored
	// here only to become a dead letter there. Defaults to 16 MiB, which is
	// RabbitMQ's own default since 4.0.
	MaxPayload int

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans. Default to OpenTelemetry's global ones, which do nothing until
	// others are set.
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
	if c.MaxPayload < 1 || c.MaxPayload > mostMaxPayload {
		errs = append(errs, fmt.Errorf("MaxPayload is %d, not in 1..%d", c.MaxPayload, mostMaxPayload))
	}
	return errors.Join(errs...)
}

// Outbox writes into one set of tables. It has no state: one serves any number
// of goroutines and databases.
type Outbox struct {
	config  Config
	dialect dialect.Dialect
	insert  insert

	instruments *instruments
}

// New returns an Outbox, or an error that names every field of config that
// cannot be used.
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

// standard is what the functions of the package use: PostgreSQL, "once_". It is
// made when it is first used, by when global providers have been set.
var standard = sync.OnceValue(mustNew)

func mustNew() *Outbox {
	o, err := New(Config{})
	if err != nil {
		panic(err) // a mistake of ours: the zero Config is valid
	}
	return o
}
