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

	// absentAfter is how long a registered consumer may be absent before Publish logs an
	// error. Until the consumer runs again, or [Transport.Forget] ends its registration,
	// its messages accumulate.
	absentAfter = 10 * time.Minute
)

// Config configures a [Transport]. The zero value is ready for use.
type Config struct {
	// Schema names the tables and the kind of database. Use the same value in the
	// retry.Config and the poison.Config of the consumers. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
	Logger watermill.LoggerAdapter
}

// Transport delivers messages from publishers to consumers that use the same database.
// Transport implements message.Publisher. The method Subscriber returns subscribers.
type Transport struct {
	config Config
	store  *parkedrows.Store

	mu      sync.Mutex
	running map[*subscription]struct{} // subscriptions of this process
	warned  map[registration]time.Time // when each absent consumer was last logged
	closed  bool
}

// registration identifies a consumer of a topic.
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

// Close makes Publish fail from now on. Messages that were published before are in the
// database, and are handled when their consumers run.
func (t *Transport) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

// Destination returns the default of forwarder.Config.Destination for a forwarder with
// this publisher. The text contains the name of the table that receives the messages.
func (t *Transport) Destination() string {
	return fmt.Sprintf("embedded transport, tables %s", t.config.Schema.Table("parked"))
}

// closedError is the error of Publish and Subscribe after Close.
type closedError struct{}

func (closedError) Error() string { return "embedded: the transport or subscriber is closed" }

// Unavailable tells the forwarder that no message can be published now.
func (closedError) Unavailable() bool { return true }

// noConsumerError means that no consumer is registered for the topic, so the message
// would be lost. The forwarder treats this error as a refusal: it waits, and publishes
// the message again.
type noConsumerError struct{ topic string }

func (e *noConsumerError) Error() string {
	return fmt.Sprintf("embedded: no consumer has ever subscribed to %q: start its router once before messages are forwarded", e.topic)
}

// Refused tells the forwarder that only this message was refused.
func (e *noConsumerError) Refused() bool { return true }

// Publish stores messages for every consumer that is registered for topic, whether the
// consumer is running or not. It stores all messages or none. Consumers of this process
// receive them immediately, and consumers of other processes with their next poll. If a
// message is published again while its row exists, no second row is stored. If a
// message is published again after its row was deleted, package dedup ignores the copy.
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

// ErrRunning means that Forget was called for a consumer that is running, or was
// running less than two minutes ago.
var ErrRunning = errors.New("the consumer is running")

// Forget ends the registration of a consumer for topic. This is like deleting a queue:
// no more messages are stored for the consumer, and its waiting messages are deleted.
// Forget returns the number of deleted messages. Messages in quarantine and replayed
// messages are not deleted.
//
// Call Forget when you retire or rename a consumer. Otherwise messages accumulate under
// the old name. Forget fails with [ErrRunning] until the consumer has been stopped for
// two minutes. After another error, or if a Publish runs at the same time, some
// messages may remain. In this case, call Forget again.
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

// warnEvery is the shortest time between two log lines about the same consumer, see
// warn.
const warnEvery = time.Hour

// warn logs an error for each of the given consumers that was last seen absentAfter ago
// or earlier. It logs the same consumer at most once per warnEvery.
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
