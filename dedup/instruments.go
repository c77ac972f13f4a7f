package dedup

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
)

// Outcomes of a message: indexes of outcomes.
const (
	applied = iota
	duplicate
	collision
	unusableID
	undecodable
	failed
	undecided
)

var outcomes = []string{
	applied: "applied", duplicate: "duplicate", collision: "collision", unusableID: "invalid_id",
	undecodable: "undecodable", failed: "failed", undecided: "undecided",
}

// Outcomes of work on a day: indexes of dayOutcomes.
const (
	created = iota
	emptied
	dropped
	blocked
)

var dayOutcomes = []string{created: "created", emptied: "emptied", dropped: "dropped", blocked: "blocked"}

// The times from which the lag of a message is measured: indexes of its series.
const (
	sinceCreated = iota
	sincePublished
)

func outcomeOf(err error) int {
	if err == nil {
		return applied
	}
	if errors.Is(err, errAlreadyHandled) {
		return duplicate
	}
	switch v := chain.Of(err); {
	case v.Reason == chain.ReasonCollision:
		return collision
	case v.Reason == chain.ReasonInvalidID:
		return unusableID
	case v.Reason == chain.ReasonUndecodable:
		return undecodable
	case v.Kind == chain.Undecided:
		return undecided
	}
	return failed
}

type instruments struct {
	processes *telemetry.Processes
	handled   *telemetry.Counter
	duration  *telemetry.Durations
	lag       *telemetry.Durations
	batches   *telemetry.Sizes
	swept     *telemetry.Counter
	sweeps    *telemetry.Counter
	days      *telemetry.Counter

	meter       telemetry.Meter
	rows, bytes metric.Int64Observable
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "dedup")
	i := &instruments{
		meter:     meter,
		processes: telemetry.NewProcesses(meter, telemetry.NewTracer(config.TracerProvider, "dedup")),
		handled: meter.Counter("once.dedup.handled", "{message}",
			"Messages by outcome. Each attempt of a message counts.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.dedup.duration",
			"Duration of the transaction of a message, including its handler.", telemetry.Done()),
		lag: meter.Delays("once.dedup.lag",
			"From storing a message in the outbox, or from giving it to the publisher, until it was handled.",
			telemetry.Label{Key: telemetry.Since, Values: []string{sinceCreated: "created", sincePublished: "published"}}),
		batches: meter.Sizes("once.dedup.batch.size", "{message}", "Messages that shared a transaction.",
			telemetry.Label{Key: telemetry.Outcome, Values: []string{"committed", "rolled_back"}}),
		swept:  meter.Counter("once.dedup.swept", "{row}", "Rows removed because they were older than the retention."),
		sweeps: meter.Counter("once.dedup.sweeps", "{sweep}", "Searches for rows older than the retention.", telemetry.Done()),
		rows:   meter.Gauge("once.dedup.rows", "{row}", "Rows of the inbox, an estimate."),
		bytes:  meter.Gauge("once.dedup.size", "By", "Size of the inbox with its indexes."),
		days: meter.Counter("once.dedup.days", "{day}", "Day partitions created, emptied or dropped, or blocked by a lock (layout schema.ByDay).",
			telemetry.Label{Key: telemetry.Outcome, Values: dayOutcomes}),
	}
	i.handled.Zero()
	i.swept.Zero()
	i.sweeps.Zero()
	i.days.Zero()
	return i
}

func (i *instruments) batchEnded(messages int, err error) {
	i.batches.Record(messages, telemetry.Succeeded(err))
}

type call struct {
	*instruments

	handling telemetry.Handling
	began    time.Time
	outcome  int
	stamps   [2]string // times of creation and of publishing, as in the metadata; "" if the lag is not measured
}

func (i *instruments) begin(msg *message.Message, consumer string) *call {
	delivery := parkedrows.DeliveryOf(msg.Context())
	ctx, handling := i.processes.Handle(msg.Context(), consumer, delivery.Topic, 0, msg)
	msg.SetContext(ctx)
	c := &call{instruments: i, handling: handling, began: time.Now(), outcome: failed} // the outcome if the handler panics
	if delivery.Claim == nil || delivery.Claim.Replays == 0 {
		c.stamps = [2]string{sinceCreated: msg.Metadata[meta.CreatedAt], sincePublished: msg.Metadata[meta.PublishedAt]}
	}
	return c
}

func (c *call) end() {
	c.handled.Add(1, c.outcome)
	switch c.outcome {
	case applied:
		now := time.Now()
		c.duration.Record(now.Sub(c.began), telemetry.Ok)
		c.recordLag(now)
	case failed, undecided:
		c.duration.Record(time.Since(c.began), telemetry.Failed)
	}
	c.handling.End(outcomes[c.outcome], c.outcome > duplicate)
}

// A lag is negative if the sender's clock is ahead: up to maxClockSkew it counts as 0, and beyond
// it is ignored, as is a lag of maxLag or more, because no message waits that long.
const (
	maxClockSkew = time.Minute
	maxLag       = 365 * 24 * time.Hour
)

// recordLag ignores impossible times, because any sender can write any time into the metadata.
func (c *call) recordLag(now time.Time) {
	if !c.lag.Enabled() {
		return
	}
	for since, stamp := range c.stamps {
		at, ok := meta.Stamped(stamp)
		if lag := now.Sub(at); ok && lag > -maxClockSkew && lag < maxLag {
			c.lag.Record(max(0, lag), since)
		}
	}
}

// size is estimated, because a count would read the whole inbox. A negative number is unknown.
type size struct {
	live, dead int64 // numbers of rows; dead rows are deleted rows that vacuum has not removed yet
	bytes      int64 // including indexes
}

// sizeQuery adds up the partitions of an inbox by day. Without partitions, pg_partition_tree is
// empty. The statistics of a table have the current number of rows, but are lost when the server
// crashes; then the number of the last vacuum is used. SQLite numbers rows in the order of their
// inserts, so the lowest and the highest number tell how many there are.
func sizeQuery(d dialect.Dialect) string {
	if d.SQLite() {
		return d.SQL(`SELECT COALESCE((SELECT MAX(rowid) FROM {inbox}) - (SELECT MIN(rowid) FROM {inbox}) + 1, 0), -1, -1`)
	}
	return d.SQL(`
		SELECT COALESCE(SUM(GREATEST(CASE WHEN pg_stat_get_live_tuples(relid) > 0 THEN pg_stat_get_live_tuples(relid)
		                                  ELSE c.reltuples::bigint END, 0)), 0)::bigint,
		       COALESCE(SUM(pg_stat_get_dead_tuples(relid)), 0)::bigint,
		       COALESCE(SUM(pg_total_relation_size(relid)), 0)::bigint
		FROM (SELECT to_regclass('{inbox}') AS relid UNION SELECT relid FROM pg_partition_tree(to_regclass('{inbox}'))) AS tables
		JOIN pg_class AS c ON c.oid = relid AND c.relkind = 'r'`)
}

func (i *Inbox) size(ctx context.Context) (s size, err error) {
	err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, i.sql.size).Scan(&s.live, &s.dead, &s.bytes)
	})
	return s, err
}

func (i *Inbox) observeSize() (end func()) {
	var cache telemetry.StatsCache[size]
	logError := func(err error) {
		i.config.Logger.Error("Metrics of the inbox cannot be read, retrying", err, nil)
	}
	instruments := i.instruments
	live, dead := telemetry.StateOf("live"), telemetry.StateOf("dead")
	return instruments.meter.Observe(func(ctx context.Context, o metric.Observer) error {
		seen, ok := cache.Get(ctx, i.size, logError)
		if !ok {
			return nil
		}
		o.ObserveInt64(instruments.rows, seen.live, live)
		if seen.dead >= 0 {
			o.ObserveInt64(instruments.rows, seen.dead, dead)
			o.ObserveInt64(instruments.bytes, seen.bytes)
		}
		return nil
	}, instruments.rows, instruments.bytes)
}
