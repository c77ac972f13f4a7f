package mover

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// Config is what a [Mover] can be told. The zero value fits a stock forwarder
// with defaults.
type Config struct {
	// Schema says which tables messages are moved to. They are in PostgreSQL,
	// in the database of the stock tables. Defaults to the prefix "once_".
	Schema schema.Config

	// ForwarderTopic is that of the stock forwarder and of its publishers.
	// Defaults to "forwarder_topic", as there.
	ForwarderTopic string

	// MessagesTable and OffsetsTable are written as in SQL, with quotes where
	// needed: what GenerateMessagesTableName and
	// GenerateMessagesOffsetsTableName of the stock adapters return for the
	// forwarder topic. Default to the stock names, "watermill_" and
	// "watermill_offsets_" with the topic behind them, quoted.
	MessagesTable, OffsetsTable string

	// ConsumerGroup is that of the stock forwarder's subscriber. Defaults to
	// none, as there.
	ConsumerGroup string

	// BatchSize is the largest number of messages that one transaction moves.
	// Defaults to 100.
	BatchSize int

	// PollInterval is the pause of Run when there was nothing to move. Defaults to
	// 250 ms.
	PollInterval time.Duration

	// MaxPayload is the size in bytes of the largest payload that the outbox
	// takes, see outbox.Config, whose default it has.
	MaxPayload int

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments of the outbox are made, which count
	// what is moved. Defaults to OpenTelemetry's global one, which does nothing
	// until another is set.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.ForwarderTopic = cmp.Or(c.ForwarderTopic, "forwarder_topic")
	c.MessagesTable = cmp.Or(c.MessagesTable, `"watermill_`+c.ForwarderTopic+`"`)
	c.OffsetsTable = cmp.Or(c.OffsetsTable, `"watermill_offsets_`+c.ForwarderTopic+`"`)
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.PollInterval = cmp.Or(c.PollInterval, 250*time.Millisecond)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

const mostBatchSize = 10_000

var (
	// stockTopic is what watermill-sql accepts.
	stockTopic = regexp.MustCompile(`^[A-Za-z0-9\-$:._]+$`)

	// tableName is a name in SQL, quoted or not, with or without a schema.
	tableName = regexp.MustCompile(`^(` + oneName + `\.)?` + oneName + `$`)
)

const oneName = `([A-Za-z_][A-Za-z0-9_$]*|"[^"\x00]+")`

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Schema.Dialect == schema.SQLite {
		errs = append(errs, fmt.Errorf("Schema.Dialect is %q: the stock tables are in %q", schema.SQLite, schema.PostgreSQL))
	}
	if !stockTopic.MatchString(c.ForwarderTopic) {
		errs = append(errs, fmt.Errorf("ForwarderTopic %q is none that watermill-sql accepts", c.ForwarderTopic))
	}
	for _, field := range []struct{ name, value string }{
		{"MessagesTable", c.MessagesTable},
		{"OffsetsTable", c.OffsetsTable},
	} {
		if !tableName.MatchString(field.value) {
			errs = append(errs, fmt.Errorf("%s %q is no name of a table in SQL", field.name, field.value))
		}
	}
	if c.BatchSize < 1 || c.BatchSize > mostBatchSize {
		errs = append(errs, fmt.Errorf("BatchSize is %d, not in 1..%d", c.BatchSize, mostBatchSize))
	}
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("PollInterval is %v: less than %v", c.PollInterval, time.Millisecond))
	}
	return errors.Join(errs...)
}
