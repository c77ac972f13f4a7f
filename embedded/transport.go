package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

const (
	// patience limits the time for Publish, and for the registration in Subscribe.
	patience = 30 * time.Second

	// absentAfter is how long a registered consumer may be absent before Publish logs an error,
	// because its messages accumulate until it runs again, or [Transport.Forget].
	absentAfter = 10 * time.Minute
)

// Config configures a [Transport]. The zero value is ready for use.
type Config struct {
	// Schema names the tables and the kind of database, as for the consumers' retry and poison.
	// Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter
}

// Transport delivers messages to consumers that use the same database. It implements
// message.Publisher, and Subscriber returns subscribers.
type Transport struct {
	config Config
	store  *parkedrows.Store

	mu      sync.Mutex
	running map[*subscription]struct{} // subscriptions of this process
	warned  map[registration]time.Time // when each absent consumer was last logged
	closed  bool
}

type registration struct{ consumer, topic string }

// New returns a Transport that stores messages in db. It returns an error if db is nil
// or a field of config is invalid. The tables must exist, see schema.Up.
func New(db *sql.DB, config Config) (*Transport, error) {
	if config.Logger == nil {
		config.Logger = watermill.NewSlogLogger(nil)
	}
	errs := []error{config.Schema.Validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usercode.Refused("embedded", err)
	}
	store, err := parkedrows.NewStore(db, config.Schema)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return &Transport{
		config: config, store: store,
		running: map[*subscription]struct{}{}, warned: map[registration]time.Time{},
	}, nil
}

// Close makes all later calls of Publish fail. Messages that were already published are in the
// database, and are handled when their consumers run.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

// Destination is the default of forwarder.Config.Destination, with the name of the table.
func (t *Transport) Destination() string {
	return fmt.Sprintf("embedded transport, tables %s", t.config.Schema.Table("parked"))
}

type closedError struct{}

func (closedError) Error() string { return "embedded: the transport or subscriber is closed" }

// Unavailable tells the forwarder that no message can be published now.
func (closedError) Unavailable() bool { return true }

// noConsumerError means that no consumer is registered for the topic, so the message would be lost.
// The forwarder publishes it again later.
type noConsumerError struct{ topic string }

func (e *noConsumerError) Error() string {
	return fmt.Sprintf("embedded: no consumer has ever subscribed to %q: start its router once before messages are forwarded", e.topic)
}

// Refused tells the forwarder that only this message was refused.
func (e *noConsumerError) Refused() bool { return true }

// Publish stores all messages, or none, for every consumer that is registered for topic, whether it
// runs or not. Consumers of this process receive them immediately, others with their next poll. A
// copy of a message is not stored while its row exists, and later ignored by dedup.
//
// If no consumer is registered for topic, Publish fails, and a forwarder tries again later. A new
// consumer receives only messages that are published after its first subscription.
func (t *Transport) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return closedError{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(messages[0].Context()), patience)
	defer cancel()
	failpoint.Hit("embedded/deliver")
	to, err := t.store.Publish(ctx, topic, messages...)
	if err != nil {
		return fmt.Errorf("embedded: publish to %q: %w", topic, err)
	}
	if len(to) == 0 {
		return &noConsumerError{topic}
	}
	failpoint.Hit("embedded/delivered")
	t.wake(topic)
	t.warn(to)
	return nil
}

// ErrRunning means that Forget was called for a consumer that ran less than two minutes ago.
var ErrRunning = errors.New("the consumer is running")

// Forget ends the registration of a consumer for topic, like deleting a queue: its waiting messages
// are deleted, except quarantined and replayed ones, and no more are stored. It returns the number
// of deleted messages.
//
// Call Forget when you retire or rename a consumer, because messages would accumulate. It fails
// with [ErrRunning] until the consumer has been stopped for two minutes. After another error, or a
// concurrent Publish, some messages may remain: call Forget again.
func (t *Transport) Forget(ctx context.Context, consumer, topic string) (deleted int64, err error) {
	deleted, err = t.store.Unregister(ctx, consumer, topic)
	if running, ok := errors.AsType[*parkedrows.RunningError](err); ok {
		return 0, fmt.Errorf("embedded: forget consumer %q of topic %q: %w: %w", consumer, topic, ErrRunning, running)
	}
	t.mu.Lock()
	delete(t.warned, registration{consumer, topic})
	t.mu.Unlock()
	if err != nil {
		return deleted, fmt.Errorf("embedded: %w", err)
	}
	t.config.Logger.Info("Consumer is no longer registered",
		watermill.LogFields{"consumer": consumer, "topic": topic, "deleted": deleted})
	return deleted, nil
}

// warnEvery is the shortest time between two log lines about a consumer.
const warnEvery = time.Hour

// warn logs the consumers that were last seen absentAfter ago or earlier, each once per warnEvery.
func (t *Transport) warn(to []parkedrows.Consumer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range to {
		at := registration{c.Consumer, c.Topic}
		if c.Unseen < absentAfter {
			delete(t.warned, at)
			continue
		}
		if last, warned := t.warned[at]; warned && time.Since(last) < warnEvery {
			continue
		}
		t.warned[at] = time.Now()
		t.config.Logger.Error("Registered consumer is not running, messages pile up for it",
			fmt.Errorf("consumer %q of topic %q was last seen %v ago: start it, or end its registration with Transport.Forget",
				c.Consumer, c.Topic, c.Unseen.Truncate(time.Minute)),
			watermill.LogFields{"consumer": c.Consumer, "topic": c.Topic, "last_owner": c.Owner})
	}
}
