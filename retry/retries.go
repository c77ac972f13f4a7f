package retry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Retries retries failing messages. Its Middleware retries and parks them, and its
// Subscriber delivers the parked messages.
type Retries struct {
	config   Config
	store    *parkedrows.Store
	patience parkedrows.Patience

	registerEvery time.Duration // how often each subscription renews its registration

	used chan struct{} // closed at the first call of Middleware
	use  func()        // closes the channel used

	instruments *instruments
	watchers    watchers
	conflicts   conflicts
}

// New returns a Retries that parks messages in db, which must be the consumer's own
// database. It returns an error if db is nil or config is invalid. The tables must
// exist, see schema.Up.
func New(db *sql.DB, config Config) (*Retries, error) {
	config = config.withDefaults()
	store, err := parkedrows.NewStore(db, config.Schema)
	if err = errors.Join(err, config.validate()); err != nil {
		return nil, usercode.Refused("retry", err)
	}
	used := make(chan struct{})
	retries := &Retries{
		config:   config,
		store:    store,
		patience: parkedrows.Patience{UnackedWait: config.UnackedWait, Logger: config.Logger},

		registerEvery: parkedrows.SeenEvery,

		used: used,
		use:  sync.OnceFunc(func() { close(used) }),

		instruments: newInstruments(config),
	}
	chain.Register(chain.Code{Part: "retry"}, retries.Middleware)
	return retries, nil
}

// policy returns the policy of the first class that matches err, or Config.Policy. A Match that
// panics does not match.
func (r *Retries) policy(err error) Policy {
	for _, class := range r.config.Classes {
		matches := false
		if failed := chain.Run(func() error { matches = class.Match(err); return nil }); failed != nil {
			r.config.Logger.Error("Match of a class of errors failed, the class is not used", failed, nil)
		} else if matches {
			return class.Policy
		}
	}
	return r.config.Policy
}

var errClosed = errors.New("retry: the subscriber is closed")

var errClosing = errors.New("retry: the consumer shuts down while the message waits for its next attempt")

var errNotEnded = errors.New("it ignores the end of the context of Subscribe, so the consumer cannot be resumed before it ends")

// ErrConsumerInUse means that another handler of this process uses the same consumer name and
// topic. Each of the two would skip messages that the other has handled.
var ErrConsumerInUse = errors.New("the consumer's name is in use")

type inUseError struct{ error }

func (inUseError) Is(target error) bool { return target == ErrConsumerInUse }

// ErrGivenBack means that messages had neither an ack nor a nack when Close had waited for
// Config.CloseTimeout. They are delivered again.
var ErrGivenBack = errors.New("retry: messages given back without an ack")

// Permanent marks err as permanent. The message is then given up on without further attempts.
// Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return chain.Forever(chain.ReasonPermanent, err)
}

// After sets the delay before the next attempt, in place of the policy's delay. The failure counts
// as an attempt like any other. After(nil, d) returns nil.
func After(err error, d time.Duration) error {
	return failedWith(err, func(v *chain.Error) { v.After = max(d, time.Millisecond) })
}

// Unavailable marks err as the error of a service that cannot be used at all, so that the next
// messages would fail, too. It opens the [Breaker] at once. Without a breaker, the message is
// retried as after any other error. Unavailable(nil) returns nil.
func Unavailable(err error) error {
	return failedWith(err, func(v *chain.Error) { v.Unavailable = true })
}

// Own marks err as an error whose cause is the message alone, so that it does not open the
// [Breaker]. The message is retried as after any other error. Own(nil) returns nil.
func Own(err error) error {
	return failedWith(err, func(v *chain.Error) { v.Own = true })
}

// failedWith keeps what After, Unavailable and Own have marked before.
func failedWith(err error, mark func(v *chain.Error)) error {
	if err == nil {
		return nil
	}
	v := &chain.Error{Kind: chain.Failed, Reason: chain.ReasonFailed}
	if before, ok := errors.AsType[*chain.Error](usercode.Guard(err)); ok && before.Kind == chain.Failed { // methods of err may panic
		v.After, v.Unavailable, v.Own = before.After, before.Unavailable, before.Own
	}
	v.Err = err
	mark(v)
	return v
}

// givenUpError wraps the last error of the handler.
type givenUpError struct {
	attempts int // calls of the handler, over all deliveries
	err      error
}

func (e *givenUpError) Error() string {
	return fmt.Sprintf("retry: given up after attempt %d: %v", e.attempts, e.err)
}

func (e *givenUpError) Unwrap() error { return e.err }

// Part describes the retries to once.Plugin.
func (r *Retries) Part() chain.Part {
	tables := []string{"inbox", "parked", "replays", "consumers", "consumer_instances", "consumer_pauses", "consumer_limits"}
	if r.config.Breaker != nil {
		tables = append(tables, "audit")
	}
	return chain.Part{
		Name: "retry", DB: r.store.DB(), Schema: r.config.Schema, Logger: r.config.Logger, Tables: tables,
		Concurrency: r.config.Concurrency, LongestDelay: r.config.longestDelay(),
	}
}

// ConsumerName returns the consumer name given to [Retries.Subscriber].
func (s *subscriber) ConsumerName() string { return s.consumer }

// SharesConsumer reports whether other handlers may use the same consumer name, see
// Config.ShareConsumer.
func (s *subscriber) SharesConsumer() bool { return s.retries.config.ShareConsumer }

// Ping checks that the broker of the wrapped subscriber accepts the connection. Without a Ping
// method, it returns nil.
func (s *subscriber) Ping(ctx context.Context) error { return usercode.Ping(ctx, s.sub) }
