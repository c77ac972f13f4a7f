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

	maxConsumers = 1000

	// Consumer.Lag looks for the oldest message among at most maxTenants tenants of one consumer,
	// and allTenants of all, but at least fewTenants of each.
	maxTenants = 100
	fewTenants = 10
	allTenants = 3000
)

// Consumer is a consumer of one topic, with its instances and messages. A count that is equal to
// CountLimit may be higher. [Messages.Count] returns exact numbers.
type Consumer struct {
	// Name is the consumer name. Topic is the topic of its subscription.
	Name, Topic string

	// Registered reports whether the consumer has subscribed with retry's Subscriber, and was not
	// removed since. If not, only messages have this name.
	Registered bool

	// Embedded reports whether the consumer subscribed through the embedded transport, which stores
	// messages for it even while it does not run. KeyOrder reports whether it keeps the order of
	// ordering keys.
	Embedded, KeyOrder bool

	// Program and Handler describe the latest subscription. Handler is the handler's name in the
	// router, or "" until the first message arrives.
	Program, Handler string

	// RegisteredAt is the time of the first subscription, SeenAt of the latest renewal by an
	// instance.
	RegisteredAt, SeenAt time.Time

	// Running reports whether an instance of the consumer runs. A paused consumer runs, too.
	Running bool

	// Pause is not nil while the consumer is paused, see [Messages.PauseConsumer].
	Pause *Pause

	// Limit is not nil if the consumer has a limit, see [Messages.LimitConsumer].
	Limit *ConsumerLimit

	// Instances contains the subscriptions that run, or stopped without unregistering in the last
	// hour, in the order of their start.
	Instances []Instance

	// CountLimit is 1,000, or 100 if Consumers returns more than 100 consumers.
	CountLimit int

	// Waiting includes Claimed, the messages whose lease has not ended: the consumer handles them,
	// or has fetched them in advance.
	Waiting, Claimed int

	// Held counts the messages that wait for another one of the same ordering key.
	Held int

	// Failing counts the waiting messages whose handler has failed before, among at most CountLimit
	// that wait for another attempt and as many claimed ones.
	Failing int

	Quarantined int

	// Lag is how long the oldest due message has been due, or 0. It is sought among all messages
	// that wait for another attempt, and among the others of at most 100 tenants, or fewer with
	// more than 30 consumers.
	Lag time.Duration
}

// Instance is a subscription of a consumer in one process.
type Instance struct {
	// Owner contains the host, the process and a random part, as Message.ClaimedBy does.
	Owner string

	Program, Handler string

	StartedAt, SeenAt time.Time

	// Running reports whether the instance has renewed its row in the last two minutes. It does
	// every 30 seconds.
	Running bool

	// Failing reports whether the calls of this instance fail, so that its breaker is open, see
	// retry.Breaker.
	Failing bool

	// Limit is the limit in the configuration of this instance. The zero value means no limit.
	Limit Limit
}

type consumerName struct{ name, topic string }

// Consumers returns all consumers in the order of their names and topics: registered
// consumers, whether they run or not, and other consumers that have messages, or are paused or limited. For each
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
		for _, c := range at {
			if c.Limit != nil && c.Limit.PerSecond == 0 { // it had one until a moment ago
				c.Limit = nil
			}
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
			since, limited   sql.NullInt64
			limit            ConsumerLimit
		)
		err := scan(&c.Name, &c.Topic, &c.Embedded, &c.KeyOrder, &c.Program, &c.Handler, &registered, &seen, &since, &pause.Actor, &pause.Why,
			&pause.Breaker, &limit.PerSecond, &limit.Burst, &limit.Actor, &limit.Why, &limited, &limit.Used)
		if limit.PerSecond > 0 || limit.Used > 0 {
			limit.Since = rows.Time(limited)
			c.Limit = &limit
		}
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
		err := scan(&of.name, &of.topic, &i.Owner, &i.Program, &i.Handler, &started, &seen, &i.Running, &i.Failing,
			&i.Limit.PerSecond, &i.Limit.Burst)
		i.StartedAt, i.SeenAt = rows.Millis(started), rows.Millis(seen)
		if c := at[of]; c != nil {
			c.add(i)
		}
		return err
	}, m.db.SQL(instancesQuery), -store.AbsentAfter.Milliseconds())
}

// add adds an instance. The limit of the consumer is the configured one, unless an operator has set
// another. While a deployment changes it, the latest instance decides.
func (c *Consumer) add(i Instance) {
	c.Instances = append(c.Instances, i)
	c.Running = c.Running || i.Running
	if i.Running && i.Limit != (Limit{}) && (c.Limit == nil || c.Limit.Actor == "") {
		if c.Limit == nil {
			c.Limit = &ConsumerLimit{}
		}
		c.Limit.Limit = i.Limit
	}
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

// Conditions of the partial indexes of waiting rows, with and without crashes, which a claim counts
// until it is settled, and of quarantined rows.
const (
	isFresh       = `p.state = 'waiting' AND p.crashes = 0`
	isCrashed     = `p.state = 'waiting' AND p.crashes > 0`
	isQuarantined = `p.state || '' = 'quarantined'`
)

// namesQuery finds the registered consumers, and those with rows, by one step in an index for each,
// however many rows it has.
var namesQuery = walks(``, `(p.consumer, p.topic) > (s.consumer, s.topic)`, maxConsumers) + `
	SELECT k.consumer, k.topic, COALESCE(c.embedded, 1 = 0), COALESCE(c.key_order, 1 = 0), COALESCE(c.program, ''), COALESCE(c.handler, ''),
	       {millis c.registered_at}, {millis c.seen_at}, {millis s.paused_at}, COALESCE(s.actor, ''), COALESCE(s.why, ''),
	       s.probe_at IS NOT NULL,
	       COALESCE(l.per_second, 0), COALESCE(l.burst, 0), COALESCE(l.actor, ''), COALESCE(l.why, ''), {millis l.set_at},
	       CASE WHEN l.given_since >= {after -20000} THEN l.given * 1000.0 / ({clock} - {millis l.given_since} + 1) ELSE 0 END
	FROM (SELECT consumer, topic
	      FROM (SELECT consumer, topic FROM {consumers} ORDER BY topic, consumer LIMIT ` + limitOf(maxConsumers) + `) AS registered
	      UNION SELECT consumer, topic FROM {consumer_pauses}
	      UNION SELECT consumer, topic FROM {consumer_limits} WHERE per_second IS NOT NULL
	      UNION SELECT consumer, topic FROM fresh UNION SELECT consumer, topic FROM crashed
	      UNION SELECT consumer, topic FROM held UNION SELECT consumer, topic FROM quarantined) AS k
	LEFT JOIN {consumers} AS c ON c.consumer = k.consumer AND c.topic = k.topic
	LEFT JOIN {consumer_pauses} AS s ON s.consumer = k.consumer AND s.topic = k.topic
	LEFT JOIN {consumer_limits} AS l ON l.consumer = k.consumer AND l.topic = k.topic
	ORDER BY k.consumer, k.topic`

// walks returns table expressions with the consumers and topics that have a row of each kind that a
// consumer can have. also is a further condition of the rows, and next one of those behind row s.
func walks(also, next string, most int) string {
	return `WITH RECURSIVE ` +
		walk("fresh", isFresh+also, next, most) + `, ` +
		walk("crashed", isCrashed+also, next, most) + `, ` +
		walk("held", `p.state = 'held'`+also, next, most) + `, ` +
		walk("quarantined", isQuarantined+also, next, most)
}

// walk returns a recursive table expression with each consumer and topic that has a row in where.
func walk(name, where, next string, most int) string {
	first := func(also string) string {
		return `(SELECT p.id FROM {parked} AS p WHERE ` + where + also + ` ORDER BY p.consumer, p.topic LIMIT 1)`
	}
	return name + ` (consumer, topic, n) AS (
		SELECT f.consumer, f.topic, 1 FROM {parked} AS f WHERE f.id = ` + first(``) + `
	UNION ALL
		SELECT f.consumer, f.topic, s.n + 1 FROM ` + name + ` AS s CROSS JOIN {parked} AS f
		WHERE s.n < ` + limitOf(most) + ` AND f.id = ` + first(` AND `+next) + `
	)`
}

const instancesQuery = `SELECT consumer, topic, owner, program, handler, {millis started_at}, {millis seen_at}, seen_at >= {after $1},
	failing_since IS NOT NULL, COALESCE(per_second, 0), COALESCE(burst, 0)
	FROM {consumer_instances} ORDER BY topic, consumer, started_at, owner LIMIT 10000`

// countsQuery counts the rows of consumers, passed as two lists of names and topics. Each count is
// an index scan that ends at the limit.
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

// lagRows is never reached. Without a limit, PostgreSQL would move the outer condition into the
// subquery, and search for each due time twice.
const lagRows = 10_000_000

// lagQuery returns how long the oldest due row of each consumer has been due, in milliseconds, for
// two lists of names and topics. It goes tenant by tenant, because the index is sorted by due time
// only within a tenant.
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
