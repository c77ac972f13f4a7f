package service

import (
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// Service is the order service. Its parts are here, what they do is in the
// files of their names.
type Service struct {
	database  Database
	transport Transport
	mailer    Mailer
	hooks     Hooks
	logger    *slog.Logger

	// Three pools, so that no kind of work can keep the connections from
	// another: see [Database].
	requests   *sql.DB
	handling   *sql.DB
	forwarding *sql.DB

	box       *outbox.Outbox
	consumer  *once.Consumer
	ordered   *once.Consumer // keeps the order of keys
	newest    *once.Consumer // ignores versions that are older than what was applied
	router    *message.Router
	forwarder Forwarder

	keyTimeout  time.Duration
	stopTimeout time.Duration
	health      health
}

// How many messages a subscription handles at once: of the broker's, and parked
// ones. With a connection to claim and renew, that is how many connections it
// needs: a handler that waits for one holds up others.
const (
	inFlight     = 3
	parkedAtOnce = 2
)

// together is how many messages are handled in one transaction, or stored with
// one statement, at most.
const together = 50

// New puts a service together and subscribes its consumers. The tables must be
// there, see [Database.Migrate]. The transport is the service's from here on:
// it is closed at the end of [Service.Run], by [Service.Close], or if New fails.
func New(database Database, transport Transport, mailer Mailer, config Config) (*Service, error) {
	config = config.withDefaults()
	s := &Service{
		database:    database,
		transport:   transport,
		mailer:      mailer,
		hooks:       config.Hooks,
		logger:      config.Logger,
		requests:    database.Pool(8),
		handling:    database.Pool(len(Subscriptions()) * (inFlight + parkedAtOnce + 1)),
		forwarding:  database.Pool(4),
		keyTimeout:  config.KeyTimeout,
		stopTimeout: config.StopTimeout,
	}
	if err := s.build(config); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Service) build(config Config) (err error) {
	logger := watermill.NewSlogLogger(config.Logger)
	if s.box, err = outbox.New(outbox.Config{Schema: s.database.Tables}); err != nil {
		return err
	}
	concurrency := parkedAtOnce
	if s.database.Tables.Dialect == schema.SQLite {
		concurrency = 1 // as many as there can be writers
	}
	consumers := once.ConsumerConfig{
		Schema:           s.database.Tables,
		Logger:           logger,
		DurableConsumers: []string{"notifications"},
		Durable:          durable.Config{BatchSize: together, Ahead: parkedAtOnce},
		Dedup:            dedup.Config{Batch: dedup.Batch{Size: together}},
		Retry: retry.Config{
			Policy: config.Retry, Lease: config.Lease,
			PollInterval: 200 * time.Millisecond, Concurrency: concurrency,
		},
	}
	if s.consumer, err = once.NewConsumer(s.handling, consumers); err != nil {
		return err
	}
	ordered := consumers
	ordered.Retry.KeyOrder = retry.BlockWhileRetried
	if s.ordered, err = once.NewConsumer(s.handling, ordered); err != nil {
		return err
	}
	newest := consumers
	newest.Sequence = &sequence.Config{}
	if s.newest, err = once.NewConsumer(s.handling, newest); err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: config.StopTimeout}, logger); err != nil {
		return err
	}
	if err := s.addConsumers(); err != nil {
		return err
	}
	s.forwarder, err = config.Hooks.Forwarder(s.forwarding, s.transport.Publisher(), forwarder.Config{
		Schema:       s.database.Tables,
		Lease:        config.Lease,
		CloseTimeout: config.StopTimeout,
		Logger:       logger,
	})
	return err
}

// Quarantine returns the store of the messages that were given up. It is the
// same for all consumers, and so is what Run removes from the inbox: they share
// their tables.
func (s *Service) Quarantine() *poison.Quarantine { return s.consumer.Quarantine() }

// Close closes what everything else works with. It is for a service that is not
// run after all: Run does it too.
func (s *Service) Close() error {
	return errors.Join(s.transport.Close(), s.requests.Close(), s.handling.Close(), s.forwarding.Close())
}
