package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
)

// Limit is how many messages of a consumer and topic may start in all instances together, see
// retry.Limits.
type Limit struct {
	PerSecond float64

	// Burst defaults to what PerSecond allows in a second, at least 1.
	Burst int
}

// ConsumerLimit is the limit of a consumer for one topic.
type ConsumerLimit struct {
	Limit

	// Actor is the person who set the limit. Actor, Why and Since are empty if the limit comes from
	// the configuration of the instances.
	Actor, Why string
	Since      time.Time

	// Used is how many messages per second have started in the last 5 to 20 seconds.
	Used float64
}

// LimitConsumer sets the limit of a consumer for a topic, or for each of its topics if topic is "".
// It replaces the limit in the configuration, also for instances that start later, until it is
// removed by another call with the zero Limit. LimitConsumer returns the topics whose limit was
// changed. Act.Why is required.
//
// Each instance uses the new limit within a second.
//
// If no consumer has this name, or the consumer does not have this topic, the error wraps
// [ErrConsumerNotFound] and lists the known consumers.
func (m *Messages) LimitConsumer(ctx context.Context, act operate.Act, name, topic string, limit Limit) (topics []string, err error) {
	err = act.Validate()
	if act.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the consumer needs another limit"))
	}
	if name == "" {
		err = errors.Join(err, errors.New("the name of the consumer is empty"))
	}
	name, topic = store.Clean(name, store.MaxName), store.Clean(topic, store.MaxName)
	action, row := "consumer.unlimited", store.Limit(limit).WithDefaults()
	change := func(ctx context.Context, tx *sql.Tx, topic string) (bool, error) {
		n, err := dialect.Affected(tx.ExecContext(ctx, m.db.SQL(`
			UPDATE {consumer_limits} SET per_second = NULL, burst = NULL, actor = '', why = '', set_at = NULL
			WHERE topic = $1 AND consumer = $2 AND per_second IS NOT NULL`), topic, name))
		return n > 0, err
	}
	if limit != (Limit{}) {
		action, err = "consumer.limited", errors.Join(err, row.Validate(""))
		why := act.Why
		act.Why = fmt.Sprintf("%v per second, burst %d: %s", row.PerSecond, row.Burst, why)
		// Starts that were given at a slow pace do not delay those of a faster one.
		change = func(ctx context.Context, tx *sql.Tx, topic string) (bool, error) {
			_, err := tx.ExecContext(ctx, m.db.SQL(`
				INSERT INTO {consumer_limits} AS l (topic, consumer, per_second, burst, actor, why, set_at) VALUES ($1, $2, $3, $4, $5, $6, {now})
				ON CONFLICT (topic, consumer) DO UPDATE
				SET per_second = excluded.per_second, burst = excluded.burst, actor = excluded.actor, why = excluded.why, set_at = excluded.set_at,
				    given_until = CASE WHEN l.given_until > {now} THEN {now} ELSE l.given_until END`),
				topic, name, row.PerSecond, row.Burst, store.Clean(act.Actor, store.MaxName), store.Clean(why, store.MaxError))
			return true, err
		}
	}
	if err == nil {
		topics, err = m.changeConsumer(ctx, act, action, name, topic, change)
	}
	if err != nil {
		return nil, fmt.Errorf("parked: limit consumer: %w", err)
	}
	return topics, nil
}
