package durable

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// Config is what an [Storage] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. It is the one of
	// the consumers' retry and poison. Defaults to PostgreSQL and the prefix
	// "once_".
	Schema schema.Config

	// BatchSize is how many messages are stored with one statement at the most.
	// There are never more than the transport has in flight: for RabbitMQ see
	// rabbit.SubscriberConfig.InFlight. A batch is also stored when it has 8 MiB.
	// Defaults to 500.
	BatchSize int

	// BatchWait is how long the first message of a batch waits for others at the
	// most. While a batch is being stored the next one gathers in any case, so
	// this matters when there is little to do: it saves commits, and costs
	// latency. Defaults to 1 ms.
	BatchWait time.Duration

	// Ahead is how many stored messages each subscription claims beyond those
	// that its handlers are at, so that one statement claims many. It is to be
	// small where handlers are slow and other instances could take them. If the
	// process is killed, all that it had claimed run alone, one by one, the first
	// time after. Defaults to 64.
	Ahead int

	// KeepHandled is how long the row of a message stays after it was handled,
	// to be looked at; meanwhile a late copy is not stored again. What is older
	// is removed in short transactions while the consumer is subscribed, or by
	// dedup's Retention if that is shorter. Defaults to 0: rows are removed at
	// once.
	KeepHandled time.Duration

	// UnackedWait is how long messages are kept, neither acked nor nacked, while they
	// cannot be stored; then they are handed back to the transport. It must be
	// shorter than the broker's consumer timeout (RabbitMQ: 30 minutes), and
	// than half of it where as many messages wait at hand as are in flight. With
	// retry's KeyOrder they are kept for as long as it takes: handed back, they
	// would come again behind what came after them. Else others, if the
	// database takes them, pass one that it refuses. Defaults to 10 minutes.
	UnackedWait time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made. Defaults to
	// OpenTelemetry's global one, which does nothing until another is set.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.BatchSize = cmp.Or(c.BatchSize, 500)
	c.BatchWait = cmp.Or(c.BatchWait, time.Millisecond)
	c.Ahead = cmp.Or(c.Ahead, 64)
	c.UnackedWait = cmp.Or(c.UnackedWait, 10*time.Minute)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

// maxBatch bounds what one statement is asked to take.
const maxBatch = 10_000

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.BatchSize < 1 || c.BatchSize > maxBatch {
		errs = append(errs, fmt.Errorf("BatchSize is %d, not in 1..%d", c.BatchSize, maxBatch))
	}
	if c.Ahead < 0 || c.Ahead > maxBatch {
		errs = append(errs, fmt.Errorf("Ahead is %d, not in 1..%d", c.Ahead, maxBatch))
	}
	if c.BatchWait < 0 || c.BatchWait > time.Minute {
		errs = append(errs, fmt.Errorf("BatchWait is %v, not in 0..1m", c.BatchWait))
	}
	if c.KeepHandled < 0 {
		errs = append(errs, fmt.Errorf("KeepHandled is %v: negative", c.KeepHandled))
	}
	if c.UnackedWait < 0 {
		errs = append(errs, fmt.Errorf("UnackedWait is %v: negative", c.UnackedWait))
	}
	return errors.Join(errs...)
}
