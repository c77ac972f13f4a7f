package mover

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// Config configures a [Mover]. The zero value is right for a forwarder of Watermill
// (components/forwarder) with default settings.
type Config struct {
	// Schema names the tables of the outbox. The outbox must be in the same PostgreSQL
	// database as the tables of Watermill's forwarder. Defaults to the prefix "once_".
	Schema schema.Config

	// ForwarderTopic must have the value of the field ForwarderTopic in the configurations
	// of Watermill's forwarder and of its publishers. Defaults to "forwarder_topic", as in
	// Watermill.
	ForwarderTopic string

	// MessagesTable and OffsetsTable are the names of the tables of Watermill's forwarder,
	// written as in SQL, with quotes where needed. The methods GenerateMessagesTableName
	// and GenerateMessagesOffsetsTableName of watermill-sql's adapters return these names.
	// They default to the names that watermill-sql chooses: "watermill_" and
	// "watermill_offsets_", each followed by the topic, in quotes.
	MessagesTable, OffsetsTable string

	// ConsumerGroup is the consumer group of the subscriber of Watermill's forwarder.
	// Defaults to "", as in watermill-sql.
	ConsumerGroup string

	// BatchSize is the maximum number of messages that one transaction moves. Defaults
	// to 100.
	BatchSize int

	// PollInterval is how long Run waits after it has found no messages. Defaults to
	// 250 ms.
	PollInterval time.Duration

	// MaxPayload is the maximum size of a payload that the outbox accepts, in bytes.
	// Defaults to the default of outbox.Config.MaxPayload, 16 MiB.
	MaxPayload int

	// Check returns an error for a message that the broker can never accept, as
	// outbox.Config.Check does. Such a message becomes a dead letter when it is moved. Set
	// Check to rabbit.Check if the forwarder sends to RabbitMQ. Defaults to nil.
	Check func(topic string, msg *message.Message) error

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics of the outbox, which count moved messages.
	// Defaults to OpenTelemetry's global provider, which does nothing until you set
	// another one.
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

const maxBatchSize = 10_000

var (
	// stockTopic matches topics that watermill-sql accepts.
	stockTopic = regexp.MustCompile(`^[A-Za-z0-9\-$:._]+$`)

	// tableName matches an SQL name, quoted or not, with or without a schema.
	tableName = regexp.MustCompile(`^(` + sqlName + `\.)?` + sqlName + `$`)
)

const sqlName = `([A-Za-z_][A-Za-z0-9_$]*|"[^"\x00]+")`

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Schema.Dialect == schema.SQLite {
		errs = append(errs, fmt.Errorf("Schema.Dialect is %q: the stock tables are in %q", schema.SQLite, schema.PostgreSQL))
	}
	if !stockTopic.MatchString(c.ForwarderTopic) {
		errs = append(errs, fmt.Errorf("ForwarderTopic %q is not a topic that watermill-sql accepts", c.ForwarderTopic))
	}
	for _, field := range []struct{ name, value string }{
		{"MessagesTable", c.MessagesTable},
		{"OffsetsTable", c.OffsetsTable},
	} {
		if !tableName.MatchString(field.value) {
			errs = append(errs, fmt.Errorf("%s %q is not a table name in SQL", field.name, field.value))
		}
	}
	if c.BatchSize < 1 || c.BatchSize > maxBatchSize {
		errs = append(errs, fmt.Errorf("BatchSize is %d, not in 1..%d", c.BatchSize, maxBatchSize))
	}
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("PollInterval is %v: less than %v", c.PollInterval, time.Millisecond))
	}
	return errors.Join(errs...)
}
