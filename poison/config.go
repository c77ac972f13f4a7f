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
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// OnQuarantine is called for each new entry after the commit, for example to raise an alarm.
	// One goroutine makes all calls, so they do not delay acks, and a panic is only logged. While
	// 1,000 entries wait, further ones are only logged. Defaults to nil.
	OnQuarantine func(e Entry)

	// UnackedWait is how long a message stays unacked while it cannot be stored. Then it is given
	// back to the transport. Defaults to 10 minutes.
	UnackedWait time.Duration

	// Consumers lists the consumers with series of their own in the metrics. All others are counted
	// as "other". Defaults to none: all consumers share one series.
	Consumers []string

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default to
	// OpenTelemetry's global providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Logger defaults to slog's default logger. Set watermill.NopLogger{} to log nothing.
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
