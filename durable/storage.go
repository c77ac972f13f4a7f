package durable

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Storage stores messages in the consumer's database before they are handled.
type Storage struct {
	config      Config
	store       *parkedrows.Store
	instruments *instruments
	oneTry      time.Duration // timeout of one try to store a batch; 0 means the default of parkedrows.Patience
}

// New returns a Storage that stores messages in db, the consumer's own database. It fails if db is
// nil or a field of config is invalid. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Storage, error) {
	config = config.withDefaults()
	err := config.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, usercode.Refused("durable", err)
	}
	store, err := parkedrows.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return &Storage{config: config, store: store, instruments: newInstruments(config)}, nil
}

// Subscriber wraps the subscriber of a transport. Wrap the result with retry's Subscriber, which
// sets the consumer's name and fetches the stored messages.
//
// Close closes sub, and waits until every delivered message was stored and acked, or nacked.
// Subscribe fails after Close.
func (s *Storage) Subscriber(sub message.Subscriber) message.Subscriber {
	return &subscriber{storage: s, sub: sub, closing: make(chan struct{})}
}

// Config configures a [Storage]. The zero value is ready for use.
type Config struct {
	// Schema names the tables and the kind of database, as for the consumer's retry and poison.
	// Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// BatchSize is the maximum number of messages that one statement stores. A batch has at most
	// the messages that the transport has in flight: package rabbit has 200 for a durable consumer,
	// which gives batches of 100. For larger ones, set rabbit.SubscriberConfig.InFlight to twice
	// BatchSize. A batch of 8 MiB is stored at once. Defaults to 500.
	BatchSize int

	// BatchWait is how long the first message of a batch may wait for others. It matters only under
	// low load, because the next batch is collected while one is stored: a longer wait saves
	// commits, but increases the latency. Defaults to 1 ms.
	BatchWait time.Duration

	// Ahead is how many stored messages each subscription claims in advance, so that one statement
	// claims many. Choose a small value if handlers are slow and other instances could handle the
	// messages. After a crash, each claimed message is handled alone, and so are up to 100 that were
	// handled shortly before it, which dedup skips. Defaults to 64.
	Ahead int

	// KeepHandled is how long the row of a handled message is kept, to look at it, and to ignore a
	// late copy. Older rows are removed in short transactions while the consumer is subscribed, or
	// earlier by dedup if its Retention is shorter. Defaults to 0: rows are removed immediately.
	KeepHandled time.Duration

	// TenantConcurrency is how many messages of one tenant are handled at the same time, by all
	// instances together. Other tenants do not wait for a tenant that has as many. Messages without
	// a tenant have no such limit. If a process dies, its messages count until their leases end.
	// Each claim of messages then costs two more statements, and the instances claim one after the
	// other. Defaults to 0: there is no limit.
	TenantConcurrency int

	// UnackedWait is how long messages stay unacked while they cannot be stored, before they are
	// nacked. It must be shorter than the broker's consumer timeout (RabbitMQ: 30 minutes), or than
	// half of it if the transport prefetches only as many messages as handlers run. With retry's
	// KeyOrder there is no limit, because a nacked message would come back after its successors.
	// Without it, a message that the database refuses does not stop others. Defaults to 10 minutes.
	UnackedWait time.Duration

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider.
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
	if c.TenantConcurrency < 0 {
		errs = append(errs, fmt.Errorf("TenantConcurrency is %d: negative", c.TenantConcurrency))
	}
	if c.UnackedWait < 0 {
		errs = append(errs, fmt.Errorf("UnackedWait is %v: negative", c.UnackedWait))
	}
	return errors.Join(errs...)
}

// Part describes the storage to once.Plugin.
func (s *Storage) Part() chain.Part {
	return chain.Part{
		Name: "durable", DB: s.store.DB(), Schema: s.config.Schema, Logger: s.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
	}
}

// InFlight returns no limit, because handlers get messages from the table.
func (s *subscriber) InFlight() (limit int, automatic bool) { return math.MaxInt, true }

// Ping checks that the broker of the wrapped subscriber accepts the connection, if it can.
func (s *subscriber) Ping(ctx context.Context) error { return usercode.Ping(ctx, s.sub) }
