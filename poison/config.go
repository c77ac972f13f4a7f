package poison

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/schema"
)

// Config configures a [Store]. The zero value is ready for use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config

	// OnQuarantine is called for each new entry after the commit, for example to raise an
	// alarm. A separate goroutine makes all calls, one after another. So the calls do not
	// delay acks, and a panic is only logged. While 1,000 entries wait for their calls,
	// further entries are only logged. Defaults to nil.
	OnQuarantine func(e Entry)

	// UnackedWait is how long a message stays unacked while it cannot be stored. After this
	// time the message is given back to the transport. Defaults to 10 minutes.
	UnackedWait time.Duration

	// Consumers lists the consumers that have their own series in the metrics. All other
	// consumers are counted as "other". Defaults to none: all consumers share one series.
	Consumers []string

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default
	// to OpenTelemetry's global providers, which do nothing until you set other providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Logger defaults to slog's default logger. To log nothing, set
	// watermill.NopLogger{}.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.UnackedWait = cmp.Or(c.UnackedWait, 10*time.Minute)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.UnackedWait < 0 {
		errs = append(errs, fmt.Errorf("UnackedWait is %v: negative", c.UnackedWait))
	}
	return errors.Join(errs...)
}
