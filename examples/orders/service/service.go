package service

import (
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// Service runs the order service, or one of its two services, see [Config.Services].
type Service struct {
	services  []string
	database  Database
	transport Transport
	bank      Bank
	mailer    Mailer
	metrics   http.Handler
	hooks     Hooks
	logger    *slog.Logger

	// Each kind of work has a separate pool of connections, see [Database].
	requests   *sql.DB
	handling   *sql.DB
	forwarding *sql.DB

	box       *outbox.Outbox
	keys      *idempotency.Keys
	consumer  *once.Consumer
	ordered   *once.Consumer // keeps the order of each ordering key
	newest    *once.Consumer // ignores versions that are not above the last applied one
	router    *message.Router
	forwarder Forwarder
	console   *console.Console

	stopTimeout time.Duration
	stopping    chan struct{} // closed when Run begins to stop
	health      *health.Health
}

// The numbers of messages that one subscription handles at the same time.
const (
	inFlight     = 2 // messages from the broker
	parkedAtOnce = 2 // parked messages
)

// connections returns how many connections the subscriptions need. Each subscription
// needs one connection for each message or batch that it handles at the same time, and
// one more to claim parked messages and to renew the claims.
func connections(subscriptions []Subscription) (n int) {
	for _, s := range subscriptions {
		if s.InFlight > inFlight { // in batches, one at a time
			n += 1 + parkedAtOnce + 1
			continue
		}
		n += s.InFlight + parkedAtOnce + 1
	}
	return n
}

// maxLag is how long an event may wait in the outbox before the service reports that it
// is degraded.
const maxLag = time.Minute

// keepSent is how long the forwarder remembers which events it has sent. Package
// reconcile compares the sent events with the handled events.
const keepSent = 24 * time.Hour

// batchSize is the largest number of messages that one transaction handles, or
// one statement stores.
const batchSize = 50

// Outside contains the other companies that the service calls: a bank and a mail
// provider.
type Outside struct {
	Bank   Bank
	Mailer Mailer
}

// New builds a service, and creates the queues of its consumers. The tables must exist,
// see [Database.Migrate]. The service closes the transport: at the end of
// [Service.Run], in [Service.Close], or if New fails.
func New(database Database, transport Transport, outside Outside, config Config) (*Service, error) {
	config = config.withDefaults()
	s := &Service{
		services:    config.Services,
		database:    database,
		transport:   transport,
		bank:        outside.Bank,
		mailer:      outside.Mailer,
		metrics:     config.Metrics,
		hooks:       config.Hooks,
		logger:      config.Logger,
		requests:    database.Pool(8),
		handling:    database.Pool(connections(Subscriptions(config.Services...))),
		forwarding:  database.Pool(4),
		stopTimeout: config.StopTimeout,
		stopping:    make(chan struct{}),
	}
	if err := s.build(config); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Service) build(config Config) (err error) {
	logger := watermill.NewSlogLogger(config.Logger)
	if s.box, err = outbox.New(outbox.Config{Schema: s.database.Tables, Check: s.transport.Check}); err != nil {
		return err
	}
	s.keys, err = idempotency.New(s.requests, idempotency.Config{
		Schema: s.database.Tables, Logger: logger, MaxBody: maxBody, Wait: config.KeyTimeout,
		Client: idempotency.OneClient, // a service with authentication returns the user
	})
	if err != nil {
		return err
	}
	concurrency := parkedAtOnce
	if s.database.Tables.Dialect == schema.SQLite {
		concurrency = 1 // SQLite has one writer at a time
	}
	consumers := once.ConsumerConfig{
		Schema:           s.database.Tables,
		Logger:           logger,
		DurableConsumers: s.durable(),
		Check:            s.transport.Check,
		Durable:          durable.Config{BatchSize: batchSize, Ahead: parkedAtOnce},
		Dedup:            dedup.Config{Batch: dedup.Batch{Size: batchSize}},
		Retry: retry.Config{
			Policy: config.Retry, Lease: config.Lease, Breaker: config.Breaker,
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
	s.console, err = console.Handler(s.requests, console.Config{Schema: s.database.Tables, Authorize: config.Operators, Logger: logger})
	if err != nil {
		return err
	}
	s.forwarder, err = config.Hooks.Forwarder(s.forwarding, s.transport.Publisher(), forwarder.Config{
		Schema:       s.database.Tables,
		Lease:        config.Lease,
		CloseTimeout: config.StopTimeout,
		KeepSent:     keepSent,
		Logger:       logger,
	})
	if err != nil {
		return err
	}
	s.health, err = s.newHealth()
	return err
}

// durable returns the durable consumers of this service, which store their messages
// before they handle them.
func (s *Service) durable() []string {
	if slices.Contains(s.services, Payments) {
		return []string{"notifications"}
	}
	return nil
}

// Quarantine returns the quarantine. All consumers share it, because they use the same
// tables.
func (s *Service) Quarantine() *quarantine.Entries { return s.consumer.Quarantine() }

// Close closes the transport and all connections. Call it only if you do not call Run,
// which also closes them.
func (s *Service) Close() error {
	return errors.Join(s.transport.Close(), s.requests.Close(), s.handling.Close(), s.forwarding.Close())
}
