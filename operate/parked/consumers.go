package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate/internal/rows"
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

	// Running reports whether an instance of the consumer runs. A paused consumer runs, too.
	Running bool

	// Pause is not nil while the consumer is paused, see [Messages.PauseConsumer].
	Pause *Pause

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
// consumers, whether they run or not, and other consumers that have messages or are paused. For each
// consumer it reads a limited number of rows, even if many messages wait. It returns at
// most 1,000 registered consumers, and at most 1,000 other consumers for each kind of
// message (waiting, claimed, held, quarantined).
func (m *Messages) Consumers(ctx context.Context) ([]Consumer, error) {
	var all []Consumer
	err := m.db.Look(ctx, func(tx *sql.Tx) (err error) {
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
		lists := []any{m.db.Strings(names), m.db.Strings(topics)}
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

func (m *Messages) names(ctx context.Context, tx *sql.Tx) (all []Consumer, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			c                Consumer
			registered, seen sql.NullInt64
			pause            Pause
			since            sql.NullInt64
		)
		err := scan(&c.Name, &c.Topic, &c.Embedded, &c.KeyOrder, &c.Program, &c.Handler, &registered, &seen, &since, &pause.Actor, &pause.Why)
		if since.Valid {
			pause.Since = rows.Time(since)
			c.Pause = &pause
		}
		c.Registered, c.RegisteredAt, c.SeenAt = registered.Valid, rows.Time(registered), rows.Time(seen)
		all = append(all, c)
		return err
	}, m.db.SQL(namesQuery))
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
		i.StartedAt, i.SeenAt = rows.Millis(started), rows.Millis(seen)
		if c := at[of]; c != nil {
			c.Instances = append(c.Instances, i)
			c.Running = c.Running || i.Running
		}
		return err
	}, m.db.SQL(instancesQuery), -store.AbsentAfter.Milliseconds())
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
	}, m.db.SQL(countsQuery(m.db.Dialect, limit)), lists...)
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
	}, m.db.SQL(lagQuery(m.db.Dialect, tenants)), lists...)
}

// Conditions of the partial indexes of waiting rows: one index for rows with crash
// count 0, and one for all other rows. A claim raises the crash count until the claim
// is settled. isQuarantined is the condition of the indexes on the consumers of
// quarantined rows.
const (
	isFresh       = `p.state = 'waiting' AND p.crashes = 0`
	isCrashed     = `p.state = 'waiting' AND p.crashes > 0`
	isQuarantined = `p.state || '' = 'quarantined'`
)

// namesQuery finds the registered consumers, and the consumers that have rows. To find
// the latter, it makes one step in an index for each consumer, however many rows the
// consumer has.
var namesQuery = `WITH RECURSIVE ` +
	walk("fresh", isFresh) + `, ` +
	walk("crashed", isCrashed) + `, ` +
	walk("held", `p.state = 'held'`) + `, ` +
	walk("quarantined", isQuarantined) + `
	SELECT k.consumer, k.topic, COALESCE(c.embedded, 1 = 0), COALESCE(c.key_order, 1 = 0), COALESCE(c.program, ''), COALESCE(c.handler, ''),
	       {millis c.registered_at}, {millis c.seen_at}, {millis s.paused_at}, COALESCE(s.actor, ''), COALESCE(s.why, '')
	FROM (SELECT consumer, topic
	      FROM (SELECT consumer, topic FROM {consumers} ORDER BY topic, consumer LIMIT ` + limitOf(maxConsumers) + `) AS registered
	      UNION SELECT consumer, topic FROM {consumer_pauses}
	      UNION SELECT consumer, topic FROM fresh UNION SELECT consumer, topic FROM crashed
	      UNION SELECT consumer, topic FROM held UNION SELECT consumer, topic FROM quarantined) AS k
	LEFT JOIN {consumers} AS c ON c.consumer = k.consumer AND c.topic = k.topic
	LEFT JOIN {consumer_pauses} AS s ON s.consumer = k.consumer AND s.topic = k.topic
	ORDER BY k.consumer, k.topic`

// walk returns the SQL of a recursive common table expression that contains each
// consumer and topic once, if any of its rows fulfils the SQL condition where.
func walk(name, where string) string {
	first := func(also string) string {
		return `(SELECT p.id FROM {parked} AS p WHERE ` + where + also + ` ORDER BY p.consumer, p.topic LIMIT 1)`
	}
	return name + ` (consumer, topic, n) AS (
		SELECT f.consumer, f.topic, 1 FROM {parked} AS f WHERE f.id = ` + first(``) + `
	UNION ALL
		SELECT f.consumer, f.topic, s.n + 1 FROM ` + name + ` AS s CROSS JOIN {parked} AS f
		WHERE s.n < ` + limitOf(maxConsumers) + ` AND f.id = ` + first(` AND (p.consumer, p.topic) > (s.consumer, s.topic)`) + `
	)`
}

const instancesQuery = `SELECT consumer, topic, owner, program, handler, {millis started_at}, {millis seen_at}, seen_at >= {after $1}
	FROM {consumer_instances} ORDER BY topic, consumer, started_at, owner LIMIT 10000`

// countsQuery returns a query that counts the rows of consumers. The names and topics of
// the consumers are passed as two lists. Each count is an index scan that ends at the
// limit.
func countsQuery(d dialect.Dialect, limit int) string {
	of := `p.consumer = c.consumer AND p.topic = c.topic AND `
	count := func(column, where, which string) string {
		return `(SELECT COUNT(*) FROM (SELECT ` + column + ` FROM {parked} AS p WHERE ` + where +
			` LIMIT ` + limitOf(limit) + `) AS w` + which + `)`
	}
	return `SELECT c.consumer, c.topic, ` +
		count(`1`, of+isFresh, ``) + `, ` +
		count(`1`, of+isCrashed, ``) + `, ` +
		count(`p.due_at`, of+isCrashed, ` WHERE w.due_at > {now}`) + `, ` +
		count(`1`, of+`p.state = 'held'`, ``) + `, ` +
		count(`p.attempts`, of+isFresh+` AND p.priority_class || '' = 'retry'`, ` WHERE w.attempts > 0`) + ` + ` +
		count(`p.attempts`, of+isCrashed, ` WHERE w.attempts > 0`) + `, ` +
		count(`1`, of+isQuarantined, ``) + `
		FROM ` + d.Columns("consumer text", "topic text")
}

// lagRows is a limit that lagQuery never reaches. Without a limit, PostgreSQL would
// move the condition of the outer query into the subquery. It would then search for
// each due time twice: once for the condition, and once for the result.
const lagRows = 10_000_000

// lagQuery returns a query that computes how long the oldest due row of each consumer
// has been due, in milliseconds. The names and topics of the consumers are passed as
// two lists. The query searches tenant by tenant, because the index of due rows is
// sorted by due time only within a tenant.
func lagQuery(d dialect.Dialect, tenants int) string {
	clock := `{millis now()}`
	if d.SQLite() {
		clock = `{now}`
	}
	lists := d.Columns("consumer text", "topic text")
	first := func(column, of, where string) string {
		return `(SELECT p.` + column + ` FROM {parked} AS p
			WHERE p.consumer = ` + of + `.consumer AND p.topic = ` + of + `.topic AND ` + where + ` ORDER BY p.` + column + ` LIMIT 1)`
	}
	return `WITH RECURSIVE tenants (consumer, topic, class, tenant, n) AS (
			SELECT c.consumer, c.topic, k.class, ` + first("tenant", "c", isFresh+` AND p.priority_class = k.class`) + `, 1
			FROM ` + lists + ` CROSS JOIN (SELECT 'live' AS class UNION ALL SELECT 'replay') AS k
		UNION ALL
			SELECT t.consumer, t.topic, t.class,
			       ` + first("tenant", "t", isFresh+` AND p.priority_class = t.class AND p.tenant > t.tenant`) + `, t.n + 1
			FROM tenants AS t WHERE t.tenant IS NOT NULL AND t.n < ` + limitOf(tenants) + `
		)
		SELECT consumer, topic, ` + clock + ` - {millis MIN(due)} FROM (
			SELECT t.consumer, t.topic, ` + first("due_at", "t", isFresh+` AND p.priority_class = t.class AND p.tenant = t.tenant`) + ` AS due
			FROM tenants AS t WHERE t.tenant IS NOT NULL
		UNION ALL
			SELECT c.consumer, c.topic, ` + first("due_at", "c", isFresh+` AND p.priority_class || '' = 'retry'`) + ` FROM ` + lists + `
		UNION ALL
			SELECT c.consumer, c.topic, ` + first("due_at", "c", isCrashed) + ` FROM ` + lists + `
			LIMIT ` + limitOf(lagRows) + `
		) AS oldest
		WHERE due <= {now}
		GROUP BY consumer, topic`
}

func limitOf(n int) string { return fmt.Sprint(n) }
