package parked

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
	// SeenEvery is how often a subscription says that it is running.
	SeenEvery = 30 * time.Second

	// AbsentAfter is when a consumer that has not said so counts as not running.
	AbsentAfter = 4 * SeenEvery
)

// Consumer is a consumer that has subscribed to a topic, now or earlier.
type Consumer struct {
	Consumer, Topic string

	// Embedded says that it subscribed through the embedded transport.
	Embedded bool

	// KeyOrder says that it handles messages of one ordering key in order.
	KeyOrder bool

	// Program is the program that ran it last, Handler the name of the handler in
	// it, or "" if that was not known, and Owner the subscription.
	Program, Handler, Owner string

	// Unseen is how long ago it was last known to run.
	Unseen time.Duration
}

// Absent says that nobody is known to run the consumer.
func (c *Consumer) Absent() bool { return c.Unseen > AbsentAfter }

// consumerQueries are the statements of the table of consumers.
type consumerQueries struct {
	see      string
	one      string
	embedded string
	remove   string
	unqueue  string
}

func newConsumerQueries(d dialect.Dialect) consumerQueries {
	clock := `{millis now()}`
	if d.SQLite() {
		clock = `{now}`
	}
	columns := `SELECT consumer, topic, embedded, key_order, program, handler, owner, ` + clock + ` - {millis seen_at} FROM {consumers}`
	among, end := chosen(d)
	return consumerQueries{
		// Once embedded it stays so: what its transport has stored is waiting.
		see: d.SQL(`
			INSERT INTO {consumers} AS c (consumer, topic, embedded, key_order, program, handler, owner)
			VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (topic, consumer) DO UPDATE
			SET embedded = c.embedded OR excluded.embedded, key_order = excluded.key_order,
			    program = excluded.program, handler = excluded.handler, owner = excluded.owner, seen_at = {now}`),

		one: d.SQL(columns + ` WHERE topic = $2 AND consumer = $1`),

		embedded: d.SQL(columns + ` WHERE topic = $1 AND embedded ORDER BY consumer`),

		remove: d.SQL(`DELETE FROM {consumers} WHERE topic = $2 AND consumer = $1`),

		// Not what an operator has replayed, nor what is in hand.
		unqueue: d.SQL(`
			DELETE FROM {parked} WHERE id ` + among + `
				SELECT id FROM {parked}
				WHERE consumer = $1 AND topic = $2 AND state IN ('waiting', 'held') AND token IS NULL AND replays = 0
				LIMIT $3
				{skip_locked}` + end),
	}
}

// program names this program: the path of its main package, which is the same
// for all its processes.
//
//nolint:gochecknoglobals // it cannot change
var program = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" && info.Path != "command-line-arguments" {
		return Clean(info.Path, MaxName)
	}
	return Clean(filepath.Base(os.Args[0]), MaxName)
})

// Twin describes who runs a consumer, if that is another handler than the one of
// c: one of another program, or of another name.
func (c *Consumer) Twin(other *Consumer) (description string) {
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

// See registers a consumer for its topic, or says that it is still running. It
// returns what was known of it before, or nil. Program is filled in.
func (s *Store) See(ctx context.Context, c Consumer) (before *Consumer, err error) {
	c.Program = program()
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		before, err = s.consumer(ctx, tx, c.Consumer, c.Topic)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, s.sql.consumers.see,
			Clean(c.Consumer, MaxName), Clean(c.Topic, MaxName), c.Embedded, c.KeyOrder, c.Program, Clean(c.Handler, MaxName),
			Clean(c.Owner, MaxName))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register consumer %q for topic %q: %w", c.Consumer, c.Topic, err)
	}
	return before, nil
}

// consumer returns what is known of a consumer, or nil.
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

// Publish stores messages for every consumer that is registered for topic with
// the embedded transport, due at once, in one transaction. It returns those
// consumers. If there are none, nothing is stored.
func (s *Store) Publish(ctx context.Context, topic string, msgs ...*message.Message) (to []Consumer, err error) {
	topic = Clean(topic, MaxName)
	err = fitting(func(fit fitter) error {
		return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			to = nil
			err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
				c, err := scanConsumer(scan)
				to = append(to, c)
				return err
			}, s.sql.consumers.embedded, topic)
			if err != nil {
				return fmt.Errorf("look who is registered: %w", err)
			}
			batches := make([]*Batch, len(to))
			for i, c := range to {
				batches[i] = NewBatch(topic, Subscription{Consumer: c.Consumer, KeyOrder: c.KeyOrder})
				for _, msg := range msgs {
					batches[i].Add(msg)
				}
			}
			_, err = s.receiveAll(ctx, tx, batches, fit)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return to, nil
}

// Unregister ends a registration, unless the consumer was seen running not long
// ago, and removes the messages that wait for it, batch by batch. Messages in
// quarantine, or that were replayed from it, stay.
func (s *Store) Unregister(ctx context.Context, consumer, topic string) (removed int64, err error) {
	consumer, topic = Clean(consumer, MaxName), Clean(topic, MaxName)
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		known, err := s.consumer(ctx, tx, consumer, topic)
		if err != nil {
			return err
		}
		if known != nil && !known.Absent() {
			return &RunningError{Consumer: *known}
		}
		_, err = tx.ExecContext(ctx, s.sql.consumers.remove, consumer, topic)
		return err
	})
	for n := int64(unqueueBatch); err == nil && n == unqueueBatch; {
		err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
			n, err = dialect.Affected(tx.ExecContext(ctx, s.sql.consumers.unqueue, consumer, topic, unqueueBatch))
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

// unqueueBatch bounds what one transaction removes.
const unqueueBatch = 2000

// RunningError says that a consumer cannot be forgotten because it is running.
type RunningError struct{ Consumer Consumer }

func (e *RunningError) Error() string {
	return fmt.Sprintf("it was running %v ago as %s: stop it, wait until that is %v ago, and call again",
		e.Consumer.Unseen.Round(time.Second), e.Consumer.Owner, AbsentAfter)
}
