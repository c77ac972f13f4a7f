package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrConsumer means that a consumer cannot be compared: the tables have no data of it, or it also
// receives topics that the sender does not compare.
var ErrConsumer = errors.New("the consumer cannot be compared")

// states are the states of a message at its consumer. A held message counts as waiting.
var states = []string{"handled", "waiting", "quarantined", "discarded"}

const stateOf = `CASE p.state WHEN 'quarantined' THEN 2 WHEN 'discarded' THEN 3 WHEN 'resolved' THEN 0 ELSE 1 END`

// Receiver is the consumers' side of a comparison. It reads their inbox and their parked messages.
type Receiver struct {
	side

	config ReceiverConfig
	most   int // see mostIDs
}

// NewReceiver returns a Receiver for the consumers in db. If config is invalid, the
// error names each invalid field. The tables must exist, see schema.Up.
func NewReceiver(db *sql.DB, config ReceiverConfig) (*Receiver, error) {
	config, err := config.prepared()
	s, err := newSide(db, config.Schema, err)
	if err != nil {
		return nil, err
	}
	return &Receiver{s, config, mostIDs}, nil
}

// Answer returns the answer to a sender's question. It fails with [ErrConsumer] if a consumer
// cannot be compared with its topics, and with [ErrTooDifferent] if more than 1,000,000 ids of a
// consumer would have to be listed.
func (r *Receiver) Answer(ctx context.Context, question []byte) (file []byte, err error) {
	defer wrap("answer", &err)
	var q questionBody
	if err := decodeFile(question, questionKind, &q); err != nil {
		return nil, err
	}
	theirs, err := decodeDigest(q.Sums)
	if err != nil {
		return nil, err
	}
	a := answerBody{header: q.header}
	if a.AsOf, err = r.now(ctx); err != nil {
		return nil, err
	}
	for _, name := range r.config.Consumers {
		sec := section{Consumer: name}
		if err := r.consumer(name, q.Topics).answer(ctx, q.header, a.AsOf, theirs, &sec); err != nil {
			return nil, fmt.Errorf("consumer %q: %w", name, err)
		}
		a.Consumers = append(a.Consumers, sec)
	}
	return encodeFile(answerKind, a)
}

// since returns the beginning of the period for which the tables of all consumers are complete.
func (r *Receiver) since(ctx context.Context, topics []string) (since time.Time, err error) {
	defer wrap("compare", &err)
	now, err := r.now(ctx)
	for _, name := range r.config.Consumers {
		if err == nil {
			var from time.Time
			from, err = r.consumer(name, topics).since(ctx, now)
			since = later(since, from)
		}
	}
	return since, err
}

type consumer struct {
	*Receiver

	name   string
	topics string // topics in the form of dialect.Strings
	all    []string
}

func (r *Receiver) consumer(name string, topics []string) *consumer {
	return &consumer{r, name, r.dialect.Strings(topics), topics}
}

func (c *consumer) answer(ctx context.Context, h header, now time.Time, theirs digest, sec *section) error {
	err := c.check(ctx, h.From, sec)
	if err != nil {
		return err
	}
	if sec.Parked, err = c.parked(ctx); err != nil {
		return err
	}
	since, err := c.since(ctx, now)
	if err != nil {
		return err
	}
	w := window{later(h.From, since), h.Until}
	if !w.from.Before(w.until) {
		return fmt.Errorf("it remembers messages since %v only, the question is about the time until %v: %w",
			since.Format(time.RFC3339), w.until.Format(time.RFC3339), ErrNothingYet)
	}
	sec.From = w.from
	return respond(ctx, c, w, theirs, c.most, sec)
}

func respond(ctx context.Context, s source, w window, theirs digest, most int, sec *section) error {
	ours := digest{}
	for minute, c := range theirs {
		if w.has(key{minute: minute}, true) { // leave out minutes that the consumer may have forgotten
			ours[minute] = &cell{0, make([]uint64, len(c.sums))}
		}
	}
	if err := count(ctx, s, w, ours, 1, 1); err != nil {
		return err
	}
	sec.Known, sec.Differ = ours.hours(), compare(ours, theirs)
	return collect(ctx, s, w, sec.Differ, func(_ key, r *record) error {
		if len(sec.IDs) == most {
			return fmt.Errorf("more than %d ids would have to be listed: compare a shorter period: %w", most, ErrTooDifferent)
		}
		sec.IDs = append(sec.IDs, entry{string(r.id), states[r.state], r.firstAt})
		return nil
	})
}

// A consumer that was subscribed to other topics after from has their messages in its inbox.
func (c *consumer) check(ctx context.Context, from time.Time, sec *section) error {
	var others []string
	err := c.rows(ctx, func(scan func(dest ...any) error) error {
		var topic string
		err := scan(&topic)
		if !slices.Contains(c.all, topic) {
			others = append(others, topic)
		}
		return err
	}, c.dialect.SQL(`SELECT topic FROM {consumers} WHERE consumer = $1 AND seen_at >= {from_millis $2} ORDER BY topic`),
		c.name, from.UnixMilli())
	if err != nil {
		return err
	}
	if others != nil {
		return fmt.Errorf("%w: it also receives the topics %q: name them too, because the inbox does not know topics", ErrConsumer, others)
	}
	var known bool
	err = c.one(ctx, `SELECT EXISTS (SELECT 1 FROM {consumers} WHERE consumer = $1) OR EXISTS (SELECT 1 FROM {parked} WHERE consumer = $1)
		OR EXISTS (SELECT 1 FROM {inbox} WHERE consumer = $1),
		EXISTS (SELECT 1 FROM {inbox} WHERE message_id >= $2 AND message_id < $3 AND consumer = $1)`,
		[]any{c.name, keyPrefix, keyEnd}, &known, &sec.Keys)
	if err == nil && !known {
		return fmt.Errorf("%w: neither the inbox nor the parked messages have its name; "+
			"check the spelling, and whether it is in dedup.Config.Idempotent", ErrConsumer)
	}
	return err
}

// since returns the time since which the inbox contains all messages that the consumer has handled:
// the latest of the beginning of the retention, the registration, and the oldest row of the inbox,
// which shows a shorter retention than configured, plus margin, in whole minutes. Rows of parked
// messages and business keys are kept longer, and do not count as the oldest.
func (c *consumer) since(ctx context.Context, now time.Time) (time.Time, error) {
	var registered, oldest *int64
	err := c.one(ctx, `SELECT
		(SELECT {millis MAX(registered_at)} FROM {consumers} WHERE consumer = $1 AND topic {among $2 text}),
		(SELECT {millis i.processed_at} FROM {inbox} AS i
		 WHERE (i.message_id < $3 OR i.message_id >= $4) AND NOT EXISTS (
		     SELECT 1 FROM {parked} AS p WHERE p.message_id = i.message_id AND p.message_id <> '' AND p.consumer = i.consumer
		       AND p.state IN ('waiting', 'held', 'quarantined'))
		 ORDER BY i.processed_at LIMIT 1)`, []any{c.name, c.topics, keyPrefix, keyEnd}, &registered, &oldest)
	from := now.Add(-c.config.InboxRetention)
	for _, ms := range []*int64{registered, oldest} {
		if ms != nil {
			from = later(from, fromMillis(*ms))
		}
	}
	return ceilMinute(from.Add(margin)), err
}

func (c *consumer) parked(ctx context.Context) (all []Count, err error) {
	err = c.rows(ctx, func(scan func(dest ...any) error) error {
		var (
			state  int
			n      Count
			oldest int64
		)
		err := scan(&state, &n.N, &oldest)
		n.State, n.Oldest = states[state], fromMillis(oldest)
		all = append(all, n)
		return err
	}, c.dialect.SQL(`
		SELECT `+stateOf+` AS s, COUNT(*), {millis MIN(p.created_at)} FROM {parked} AS p
		WHERE p.consumer = $1 AND p.topic {among $2 text} AND p.state <> 'resolved' GROUP BY s ORDER BY s`), c.name, c.topics)
	return all, err
}

func (c *consumer) scan(ctx context.Context, w window, d differing, each func(*record) error) error {
	var q query
	name := q.arg(c.name)
	inbox, parked, n := q.in(w, `processed_at`), `MAX(`+q.in(w, `p.created_at`)+`)`, 2
	if d != nil {
		inbox += `, {millis processed_at}, 0, 0`
		parked += `, {millis MIN(p.created_at)}, 0, MAX(` + stateOf + `)`
		n = 5
	}
	text := `
		SELECT message_id, ` + inbox + ` FROM {inbox} WHERE consumer = ` + name + q.only(`message_id`, `processed_at`, w, d) + `
		UNION ALL
		SELECT p.message_id, ` + parked + ` FROM {parked} AS p
		WHERE p.consumer = ` + name + ` AND p.topic {among ` + q.arg(c.topics) + ` text} AND p.message_id <> ''` +
		q.only(`p.message_id`, `p.created_at`, w, d) + `
		  AND NOT EXISTS (SELECT 1 FROM {inbox} AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer)
		GROUP BY p.message_id`
	return c.records(ctx, n, each, text, q.args)
}
