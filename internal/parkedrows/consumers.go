package parkedrows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// SeenEvery is the interval at which a subscription renews its registration.
	SeenEvery = 30 * time.Second

	// AbsentAfter is how long ago a consumer that counts as running has renewed its registration.
	AbsentAfter = 4 * SeenEvery

	// instanceKept is how long the row of an instance is kept after its last renewal.
	instanceKept = time.Hour
)

// Consumer is the registration of a consumer for a topic.
type Consumer struct {
	Consumer, Topic string

	// Embedded reports whether the consumer uses the embedded transport.
	Embedded bool

	// KeyOrder reports whether the consumer handles the messages of an ordering key in order.
	KeyOrder bool

	// Program is the name of the program that ran the consumer last, and Handler the name of its
	// handler there, or "". Owner is the name of the subscription.
	Program, Handler, Owner string

	// Limit is the limit in the configuration of the instance.
	Limit Limit

	Unseen time.Duration
}

// Absent reports whether the consumer counts as not running.
func (c *Consumer) Absent() bool { return c.Unseen > AbsentAfter }

type consumerQueries struct {
	register string
	one      string
	embedded string
	remove   string

	seen   string // registers an instance, or renews its registration
	expire string // deletes the rows of dead instances
	leave  string

	removeInstances string
}

func newConsumerQueries(d dialect.Dialect) consumerQueries {
	columns := `SELECT consumer, topic, embedded, key_order, program, handler, owner, {clock} - {millis seen_at} FROM {consumers}`
	return consumerQueries{
		// embedded never becomes false: messages of the embedded transport may still wait.
		register: d.SQL(`
			INSERT INTO {consumers} AS c (consumer, topic, embedded, key_order, program, handler, owner)
			VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (topic, consumer) DO UPDATE
			SET embedded = c.embedded OR excluded.embedded, key_order = excluded.key_order,
			    program = excluded.program, handler = excluded.handler, owner = excluded.owner, seen_at = {now}`),

		one: d.SQL(columns + ` WHERE topic = $2 AND consumer = $1`),

		embedded: d.SQL(columns + ` WHERE topic = $1 AND embedded ORDER BY consumer`),

		// Deletes nothing if the consumer has registered since the caller checked it.
		remove: d.SQL(`DELETE FROM {consumers} WHERE topic = $2 AND consumer = $1 AND ($4 OR seen_at < {after $3})`),

		seen: d.SQL(`
			INSERT INTO {consumer_instances} (consumer, topic, program, handler, owner, per_second, burst)
			VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (topic, consumer, owner) DO UPDATE
			SET program = excluded.program, handler = excluded.handler, seen_at = {now}`),

		expire: d.SQL(`
			DELETE FROM {consumer_instances} WHERE topic = $2 AND consumer = $1 AND seen_at < {after $3}`),

		removeInstances: d.SQL(`DELETE FROM {consumer_instances} WHERE topic = $2 AND consumer = $1`),

		leave: d.SQL(`DELETE FROM {consumer_instances} WHERE topic = $2 AND consumer = $1 AND owner = $3`),
	}
}

// program returns the name of this program: the path of its main package. All processes
// of a program have the same name.
//
//nolint:gochecknoglobals // it cannot change
var program = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return programName(info, os.Args[0])
})

func programName(info *debug.BuildInfo, command string) string {
	if info != nil && info.Path != "" && info.Path != "command-line-arguments" {
		return Clean(info.Path, MaxName)
	}
	return Clean(filepath.Base(command), MaxName)
}

// OtherHandler compares c with the previous registration of the consumer. If that one counts as
// running and has another program or handler, OtherHandler describes it for an error message.
// Otherwise it returns "".
func (c *Consumer) OtherHandler(other *Consumer) (description string) {
	switch {
	case other == nil || other.Owner == c.Owner || other.Absent():
		return ""
	case other.Program != program():
		return fmt.Sprintf("program %q", other.Program)
	case c.Handler != "" && other.Handler != "" && c.Handler != other.Handler:
		return fmt.Sprintf("handler %q of another process", other.Handler)
	}
	return ""
}

// Register registers a consumer for its topic, and the instance that c.Owner names. If one of them
// is registered already, Register renews the registration. It returns the previous registration of
// the consumer, or nil.
func (s *Store) Register(ctx context.Context, c Consumer) (before *Consumer, err error) {
	c.Program = program()
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		before, err = s.consumer(ctx, tx, c.Consumer, c.Topic)
		if err != nil {
			return err
		}
		consumer, topic, handler, owner := Clean(c.Consumer, MaxName), Clean(c.Topic, MaxName), Clean(c.Handler, MaxName), Clean(c.Owner, MaxName)
		_, err = tx.ExecContext(ctx, s.sql.consumers.register, consumer, topic, c.Embedded, c.KeyOrder, c.Program, handler, owner)
		if err != nil {
			return err
		}
		var perSecond, burst any
		if c.Limit != (Limit{}) {
			perSecond, burst = c.Limit.PerSecond, c.Limit.Burst
		}
		if _, err = tx.ExecContext(ctx, s.sql.consumers.seen, consumer, topic, c.Program, handler, owner, perSecond, burst); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, s.sql.consumers.expire, consumer, topic, -instanceKept.Milliseconds())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register consumer %q for topic %q: %w", c.Consumer, c.Topic, err)
	}
	return before, nil
}

// Leave deletes the row of an instance that has ended.
func (s *Store) Leave(ctx context.Context, consumer, topic, owner string) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.sql.consumers.leave, Clean(consumer, MaxName), Clean(topic, MaxName), Clean(owner, MaxName))
		return err
	})
}

func (s *Store) consumer(ctx context.Context, tx *sql.Tx, consumer, topic string) (*Consumer, error) {
	c, err := scanConsumer(tx.QueryRowContext(ctx, s.sql.consumers.one, Clean(consumer, MaxName), Clean(topic, MaxName)).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // it is not known
	}
	if err != nil {
		return nil, err
	}
	return &c, nil
}

func scanConsumer(scan func(dest ...any) error) (c Consumer, err error) {
	var unseen int64
	err = scan(&c.Consumer, &c.Topic, &c.Embedded, &c.KeyOrder, &c.Program, &c.Handler, &c.Owner, &unseen)
	c.Unseen = Duration(unseen)
	return c, err
}

// Publish stores messages for each consumer that has subscribed to topic through the
// embedded transport, in one transaction. The messages are due immediately, except
// messages that wait behind another message of their ordering key. Publish returns
// these consumers. If there is no such consumer, it stores nothing.
func (s *Store) Publish(ctx context.Context, topic string, msgs ...*message.Message) (to []Consumer, err error) {
	topic = Clean(topic, MaxName)
	err = withASCIIFallback(func(encode encoder) error {
		return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			to = nil
			err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
				c, err := scanConsumer(scan)
				to = append(to, c)
				return err
			}, s.sql.consumers.embedded, topic)
			if err != nil {
				return fmt.Errorf("look for registered consumers: %w", err)
			}
			batches := make([]*Batch, len(to))
			for i, c := range to {
				batches[i] = NewBatch(topic, Subscription{Consumer: c.Consumer, KeyOrder: c.KeyOrder})
				for _, msg := range msgs {
					batches[i].Add(msg)
				}
			}
			_, err = s.receiveAll(ctx, tx, batches, encode)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return to, nil
}

// Unregister deletes a registration. It also deletes the messages that wait for the
// consumer, in batches, and returns their number. It does not delete quarantined,
// claimed and replayed messages. If the consumer is running, Unregister returns a
// [RunningError].
func (s *Store) Unregister(ctx context.Context, consumer, topic string) (removed int64, err error) {
	consumer, topic = Clean(consumer, MaxName), Clean(topic, MaxName)
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		_, err := s.Remove(ctx, tx, consumer, topic, false)
		return err
	})
	for n := int64(unregisterBatch); err == nil && n == unregisterBatch; {
		err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			n, err = dialect.Affected(tx.ExecContext(ctx, s.sql.removeQueue, consumer, topic, unregisterBatch))
			return err
		})
		if err == nil {
			removed += n
		}
	}
	if err != nil {
		return removed, fmt.Errorf("forget consumer %q of topic %q: %w", consumer, topic, err)
	}
	return removed, nil
}

// Remove deletes a registration and its instances. It reports whether the registration
// existed. If the consumer is running and force is false, Remove returns a
// [RunningError].
func (s *Store) Remove(ctx context.Context, tx *sql.Tx, consumer, topic string, force bool) (existed bool, err error) {
	known, err := s.consumer(ctx, tx, consumer, topic)
	if err != nil || known == nil {
		return false, err
	}
	if !force && !known.Absent() {
		return true, &RunningError{Consumer: *known}
	}
	n, err := dialect.Affected(tx.ExecContext(ctx, s.sql.consumers.remove, Clean(consumer, MaxName), Clean(topic, MaxName),
		-AbsentAfter.Milliseconds(), force))
	switch {
	case err != nil:
		return true, err
	case n == 0: // it has just registered
		known.Unseen = 0
		return true, &RunningError{Consumer: *known}
	}
	_, err = tx.ExecContext(ctx, s.sql.consumers.removeInstances, Clean(consumer, MaxName), Clean(topic, MaxName))
	return true, err
}

const unregisterBatch = 2000

// RunningError means that a consumer cannot be unregistered because it is running.
type RunningError struct{ Consumer Consumer }

func (e *RunningError) Error() string {
	return fmt.Sprintf("it was running %v ago as %s: stop it, wait until that is %v ago, and call again",
		e.Consumer.Unseen.Round(time.Second), e.Consumer.Owner, AbsentAfter)
}
