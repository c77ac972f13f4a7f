package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	store "github.com/watermill-once/once/internal/parked"
)

// CountLimit is the maximum value of the counts of a [Consumer].
const CountLimit = 1000

const (
	// limitOfMany is the maximum of each count if there are more than fewConsumers
	// consumers.
	limitOfMany  = 100
	fewConsumers = 100

	// maxConsumers is the maximum number of registered consumers that Consumers returns.
	maxConsumers = 1000

	// Limits for the computation of Consumer.Lag, which looks for the oldest message tenant
	// by tenant. It examines at most maxTenants tenants of one consumer, and at most
	// allTenants tenants of all consumers together. But it always examines fewTenants
	// tenants of each consumer.
	maxTenants = 100
	fewTenants = 10
	allTenants = 3000
)

// Consumer is a consumer of one topic, with its instances and messages. No count goes
// above the value of the field CountLimit: if a count is equal to this value, the true
// number may be higher. [Messages.Count] returns exact numbers.
type Consumer struct {
	// Name is the consumer name. Topic is the topic of its subscription.
	Name, Topic string

	// Registered reports whether the consumer has subscribed with retry's Subscriber, and
	// was not removed after that. If it is false, the database contains only messages under
	// this name.
	Registered bool

	// Embedded reports whether the consumer subscribed through the embedded transport,
	// which stores messages for the consumer even while it does not run. KeyOrder reports
	// whether the consumer keeps the order of messages with the same ordering key.
	Embedded, KeyOrder bool

	// Program and Handler describe the latest subscription. Program is the program that
	// subscribed. Handler is the name of the handler in the router. It is "" until the
	// first message arrives.
	Program, Handler string

	// RegisteredAt is the time of the first subscription. SeenAt is the time at which an
	// instance last renewed its registration.
	RegisteredAt, SeenAt time.Time

	// Running reports whether an instance of the consumer runs.
	Running bool

	// Instances contains the running subscriptions, and the subscriptions that stopped in
	// the last hour without unregistering. The list is in the order in which the
	// subscriptions started.
	Instances []Instance

	// CountLimit is the limit at which the counts stop. It is 1,000, or 100 if Consumers
	// returns more than 100 consumers.
	CountLimit int

	// Waiting is the number of waiting messages, including claimed messages. Claimed is the
	// number of claimed messages whose lease has not ended: the consumer is handling them,
	// or has fetched them in advance.
	Waiting, Claimed int

	// Held is the number of messages that wait for another message of the same ordering
	// key.
	Held int

	// Failing is the number of waiting messages whose handler has failed before. To count
	// them, Consumers examines at most CountLimit messages that wait for another attempt,
	// and at most CountLimit claimed messages.
	Failing int

	// Quarantined is the number of messages in quarantine.
	Quarantined int

	// Lag is how long the oldest due message has been due, or 0 if no message is due. To
	// find it, Consumers examines all messages that wait for another attempt. Among the
	// other messages, it examines those of at most 100 tenants, or of fewer tenants if
	// there are more than 30 consumers.
	Lag time.Duration
}

// Instance is a subscription of a consumer in one process.
type Instance struct {
	// Owner contains the host, the process and a random part. Message.ClaimedBy contains
	// the same string.
	Owner string

	// Program and Handler have the same meaning as in [Consumer].
	Program, Handler string

	StartedAt, SeenAt time.Time

	// Running reports whether the instance has renewed its row in the last two minutes. A
	// running instance does this every 30 seconds.
	Running bool
}

type consumerName struct{ name, topic string }

// Consumers returns all consumers in the order of their names and topics: registered
// consumers, whether they run or not, and other consumers that have messages. For each
// consumer it reads a limited number of rows, even if many messages wait. It returns at
// most 1,000 registered consumers, and at most 1,000 other consumers for each kind of
// message (waiting, claimed, held, quarantined).
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

// names returns the consumers with the data of their registrations.
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
	limit := CountLimit
	if len(at) > fewConsumers {
		limit = limitOfMany
	}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			of                                                  consumerName
			fresh, crashed, claimed, held, retried, quarantined int
		)
		err := scan(&of.name, &of.topic, &fresh, &crashed, &claimed, &held, &retried, &quarantined)
		if c := at[of]; c != nil {
			c.CountLimit = limit
			c.Waiting, c.Claimed, c.Held = min(fresh+crashed, limit), claimed, held
			c.Failing, c.Quarantined = min(retried, limit), quarantined
		}
		return err
	}, m.dialect.SQL(countsQuery(m.dialect, limit)), lists...)
}

func (m *Messages) lags(ctx context.Context, tx *sql.Tx, at map[consumerName]*Consumer, lists []any) error {
	tenants := min(maxTenants, max(fewTenants, allTenants/max(1, len(at))))
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
	}, m.dialect.SQL(lagQuery(m.dialect, tenants)), lists...)
}
