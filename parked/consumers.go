package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	store "github.com/watermill-once/once/internal/parked"
)

// CountLimit is where the counts of a [Consumer] stop.
const CountLimit = 1000

const (
	// maxConsumers bounds the result of Consumers.
	maxConsumers = 1000

	// maxTenants bounds the tenants of a consumer whose oldest messages are looked for.
	maxTenants = 100
)

// Consumer is a consumer of one topic, with its instances and messages. Each count
// stops at [CountLimit]: that number stands for at least so many. [Messages.Count] has
// exact numbers.
type Consumer struct {
	// Name is the consumer name, Topic the topic of its subscription.
	Name, Topic string

	// Registered reports whether the consumer has subscribed with retry's Subscriber, and
	// was not removed since. Without it there are only messages under this name.
	Registered bool

	// Embedded reports whether it subscribed through the embedded transport, which stores
	// messages for it while it does not run. KeyOrder reports whether it keeps the order
	// of ordering keys.
	Embedded, KeyOrder bool

	// Program and Handler are those of the subscription that was seen last. Handler is
	// the name in the router, and empty until the first message arrives.
	Program, Handler string

	// RegisteredAt is the time of the first subscription, SeenAt that of the last sign of
	// life of any instance.
	RegisteredAt, SeenAt time.Time

	// Running reports whether an instance runs.
	Running bool

	// Instances are the subscriptions in the order of their start: those that run, and
	// those that ended without a word in the last hour.
	Instances []Instance

	// Waiting is the number of waiting messages, claimed ones included. Claimed is the
	// number of those that were claimed and whose lease lasts: the consumer handles them,
	// or has fetched them ahead.
	Waiting, Claimed int

	// Held is the number of messages that wait for another one of their ordering key.
	Held int

	// Failing is the number of waiting messages whose handler has failed before. It is
	// counted among at most 1,000 messages that wait for another attempt, and 1,000 that
	// are claimed.
	Failing int

	// Quarantined is the number of messages in quarantine. It is counted among at most
	// 1,000 of the consumer, of all its topics.
	Quarantined int

	// Lag is how long the oldest due message has been due, 0 if none is due. Messages
	// that wait for another attempt are all looked at, others in at most 100 tenants.
	Lag time.Duration
}

// Instance is a subscription of a consumer in one process.
type Instance struct {
	// Owner is host, process and a random part. It is also Message.ClaimedBy.
	Owner string

	// Program and Handler are as in [Consumer].
	Program, Handler string

	StartedAt, SeenAt time.Time

	// Running reports whether the instance has renewed its row in the last two minutes.
	// It does so every 30 seconds.
	Running bool
}

type consumerName struct{ name, topic string }

// Consumers returns all consumers by name and topic: those that are registered, whether
// they run or not, and those that have messages. It reads a bounded number of rows for
// each of them, however many messages wait. Of a consumer that is not registered and has
// messages in quarantine only, it knows the topic of the first message. It returns at
// most 1,000 registered consumers, and 1,000 others for each kind of message.
func (m *Messages) Consumers(ctx context.Context) ([]Consumer, error) {
	var all []Consumer
	err := m.read(ctx, func(tx *sql.Tx) (err error) {
		if all, err = m.names(ctx, tx); err != nil {
			return err
		}
		at := map[consumerName]*Consumer{}
		names, topics := make([]string, len(all)), make([]string, len(all))
		for i := range all {
			c := &all[i]
			at[consumerName{c.Name, c.Topic}] = c
			names[i], topics[i] = c.Name, c.Topic
		}
		if err := m.instances(ctx, tx, at); err != nil {
			return err
		}
		lists := []any{m.dialect.Strings(names), m.dialect.Strings(topics)}
		if err := m.counts(ctx, tx, at, lists); err != nil {
			return err
		}
		return m.lags(ctx, tx, at, lists)
	})
	if err != nil {
		return nil, fmt.Errorf("parked: consumers: %w", err)
	}
	return all, nil
}

// names returns the consumers with their registrations.
func (m *Messages) names(ctx context.Context, tx *sql.Tx) (all []Consumer, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			c                Consumer
			registered, seen sql.NullInt64
		)
		err := scan(&c.Name, &c.Topic, &c.Embedded, &c.KeyOrder, &c.Program, &c.Handler, &registered, &seen)
		c.Registered, c.RegisteredAt, c.SeenAt = registered.Valid, timeOf(registered), timeOf(seen)
		all = append(all, c)
		return err
	}, m.dialect.SQL(namesQuery))
	return all, err
}

func (m *Messages) instances(ctx context.Context, tx *sql.Tx, at map[consumerName]*Consumer) error {
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			of            consumerName
			i             Instance
			started, seen int64
		)
		err := scan(&of.name, &of.topic, &i.Owner, &i.Program, &i.Handler, &started, &seen, &i.Running)
		i.StartedAt, i.SeenAt = time.UnixMilli(started).UTC(), time.UnixMilli(seen).UTC()
		if c := at[of]; c != nil {
			c.Instances = append(c.Instances, i)
			c.Running = c.Running || i.Running
		}
		return err
	}, m.dialect.SQL(instancesQuery), -store.AbsentAfter.Milliseconds())
}

func (m *Messages) counts(ctx context.Context, tx *sql.Tx, at map[consumerName]*Consumer, lists []any) error {
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			of                                                  consumerName
			fresh, crashed, claimed, held, retried, quarantined int
		)
		err := scan(&of.name, &of.topic, &fresh, &crashed, &claimed, &held, &retried, &quarantined)
		if c := at[of]; c != nil {
			c.Waiting, c.Claimed, c.Held = min(fresh+crashed, CountLimit), claimed, held
			c.Failing, c.Quarantined = min(retried, CountLimit), quarantined
		}
		return err
	}, m.dialect.SQL(countsQuery(m.dialect)), lists...)
}

func (m *Messages) lags(ctx context.Context, tx *sql.Tx, at map[consumerName]*Consumer, lists []any) error {
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			of  consumerName
			lag int64
		)
		err := scan(&of.name, &of.topic, &lag)
		if c := at[of]; c != nil {
			c.Lag = max(0, store.Duration(lag))
		}
		return err
	}, m.dialect.SQL(lagQuery(m.dialect)), lists...)
}
