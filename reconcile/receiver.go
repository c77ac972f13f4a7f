package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrUnknownConsumer says that the tables have no trace of a consumer.
var ErrUnknownConsumer = errors.New("no such consumer")

// ErrOtherTopics says that a consumer also receives topics that the sender was not
// asked to compare.
var ErrOtherTopics = errors.New("it also receives other topics")

// Receiver is the side that has the inbox of the consumers.
type Receiver struct {
	side

	config ReceiverConfig
	limits limits
}

// NewReceiver returns the consumers in db, or an error that names each field of
// config that cannot be used. The tables must exist, see schema.Up.
func NewReceiver(db *sql.DB, config ReceiverConfig) (*Receiver, error) {
	config = config.withDefaults()
	s, err := newSide(db, config.Schema, config.validate())
	if err != nil {
		return nil, err
	}
	return &Receiver{s, config, limits{listAtOnce, config.Limit}}, nil
}

// Answer answers a question of a sender. It fails with [ErrUnknownConsumer] or
// [ErrOtherTopics] if a consumer cannot be compared with the topics of the question.
func (r *Receiver) Answer(ctx context.Context, f *File) (*File, error) {
	a, err := r.answer(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("reconcile: answer: %w", err)
	}
	return a, nil
}

func (r *Receiver) answer(ctx context.Context, f *File) (*File, error) {
	if err := f.expect(question); err != nil {
		return nil, err
	}
	mine, err := r.fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	if f.data.Round > 1 && f.data.Receiver != mine {
		return nil, fmt.Errorf("%s is for another receiver, or for other tables: %w", f.Name(), ErrWrongStep)
	}
	a := &File{f.data}
	a.data.Kind, a.data.Receiver, a.data.Groups = answer, mine, nil
	if a.data.WrittenAt, err = r.now(ctx); err != nil {
		return nil, err
	}
	a.data.Consumers, err = r.sections(f)
	if err != nil {
		return nil, err
	}
	for i := range a.data.Consumers {
		sec := &a.data.Consumers[i]
		if err := r.compare(ctx, f, a.data.WrittenAt, sec); err != nil {
			return nil, fmt.Errorf("consumer %q: %w", sec.Consumer, err)
		}
	}
	return a, nil
}

// sections returns the consumers that a question is about.
func (r *Receiver) sections(f *File) ([]section, error) {
	if f.data.Round > 1 {
		for _, sec := range f.data.Consumers {
			if !slices.Contains(r.config.Consumers, sec.Consumer) {
				return nil, fmt.Errorf("the question is about consumer %q, which is not configured: %w", sec.Consumer, ErrWrongStep)
			}
		}
		return slices.Clone(f.data.Consumers), nil
	}
	var all []section
	for _, name := range r.config.Consumers {
		all = append(all, section{Consumer: name, Groups: f.data.Groups})
	}
	return all, nil
}

// compare replaces the groups of a question with an answer.
func (r *Receiver) compare(ctx context.Context, f *File, now time.Time, sec *section) error {
	c := consumerOf(r, sec.Consumer, f.data.Topics)
	first := f.data.Round == 1
	if first {
		if err := c.check(ctx, f.data.From); err != nil {
			return err
		}
		var err error
		if sec.Keys, err = c.keys(ctx); err != nil {
			return err
		}
		if sec.Parked, err = c.parked(ctx); err != nil {
			return err
		}
	}
	since, err := c.since(ctx, now)
	if err != nil {
		return err
	}
	sec.From = later(f.data.From, since)
	w := window{sec.From, f.data.Until}
	if !w.from.Before(w.until) {
		return fmt.Errorf("it remembers messages since %v only, the question is about the time until %v: %w",
			since.Format(time.RFC3339), w.until.Format(time.RFC3339), ErrNothingYet)
	}
	theirs, err := decodeTree(sec.Groups)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	reply, err := respond(ctx, c, w, theirs, first, r.limits)
	if err != nil {
		return err
	}
	if first {
		sec.Handled = reply.hours
	}
	sec.Groups, sec.Lists, sec.Done = nil, nil, reply.groups == nil
	if sec.Done {
		sec.Lists = encodeLists(reply.lists)
	} else {
		sec.Groups = encodeTree(reply.groups)
	}
	return nil
}

// Since returns from when on all consumers remember what they have handled of these
// topics.
func (r *Receiver) Since(ctx context.Context, topics []string) (time.Time, error) {
	now, err := r.now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("reconcile: %w", err)
	}
	var since time.Time
	for _, name := range r.config.Consumers {
		from, err := consumerOf(r, name, topics).since(ctx, now)
		if err != nil {
			return time.Time{}, fmt.Errorf("reconcile: consumer %q: %w", name, err)
		}
		since = later(since, from)
	}
	return since, nil
}

// consumer is one consumer of a receiver.
type consumer struct {
	*Receiver

	name   string
	topics string // a list, see dialect.Strings
	all    []string
}

func consumerOf(r *Receiver, name string, topics []string) *consumer {
	return &consumer{r, name, r.dialect.Strings(topics), topics}
}

func (c *consumer) exists(ctx context.Context, query string, args ...any) (bool, error) {
	var one int
	err := c.one(ctx, c.dialect.SQL(query), args, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// check returns an error if the consumer is not known, or has received other topics
// since from.
func (c *consumer) check(ctx context.Context, from time.Time) error {
	var others []string
	err := c.rows(ctx, func(scan func(dest ...any) error) error {
		var topic string
		err := scan(&topic)
		if !slices.Contains(c.all, topic) {
			others = append(others, strconv.Quote(topic))
		}
		return err
	}, c.dialect.SQL(`SELECT topic FROM {consumers} WHERE consumer = $1 AND seen_at >= {from_millis $2} ORDER BY topic`),
		c.name, from.UnixMilli())
	if err != nil {
		return err
	}
	if others != nil {
		return fmt.Errorf("%s: name them too, because the inbox does not know topics: %w", strings.Join(others, ", "), ErrOtherTopics)
	}
	for _, query := range []string{
		`SELECT 1 FROM {consumers} WHERE consumer = $1 LIMIT 1`,
		`SELECT 1 FROM {parked} WHERE consumer = $1 LIMIT 1`,
		`SELECT 1 FROM {inbox} WHERE consumer = $1 LIMIT 1`,
	} {
		if found, err := c.exists(ctx, query, c.name); found || err != nil {
			return err
		}
	}
	return fmt.Errorf("neither the inbox nor the parked messages have its name; "+
		"check the spelling, and whether it is in dedup.Config.Idempotent: %w", ErrUnknownConsumer)
}

func (c *consumer) keys(ctx context.Context) (bool, error) {
	return c.exists(ctx, `SELECT 1 FROM {inbox} WHERE message_id >= $2 AND message_id < $3 AND consumer = $1 LIMIT 1`,
		c.name, keyPrefix, "key;")
}

// since returns from when on the consumer remembers what it has handled: not
// before its retention, its registration, or the oldest row of the inbox. That row
// tells when retention is shorter than configured. Rows that retention keeps, because
// their message is parked or they are keys, do not count.
func (c *consumer) since(ctx context.Context, now time.Time) (time.Time, error) {
	from := now.Add(-c.config.InboxRetention)
	for _, q := range []struct {
		query string
		args  []any
	}{
		{`SELECT {millis MAX(registered_at)} FROM {consumers} WHERE consumer = $1 AND topic {among $2 text}`, []any{c.name, c.topics}},
		{`SELECT {millis i.processed_at} FROM {inbox} AS i
		  WHERE (i.message_id < '` + keyPrefix + `' OR i.message_id >= 'key;') AND NOT EXISTS (
		      SELECT 1 FROM {parked} AS p WHERE p.message_id = i.message_id AND p.message_id <> '' AND p.consumer = i.consumer
		        AND p.state IN ('waiting', 'held', 'quarantined'))
		  ORDER BY i.processed_at LIMIT 1`, nil},
	} {
		var ms *int64
		err := c.one(ctx, c.dialect.SQL(q.query), q.args, &ms)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return time.Time{}, err
		}
		if ms != nil {
			from = later(from, fromMillis(*ms))
		}
	}
	return ceilMinute(from.Add(margin)), nil
}

// stateOf is an SQL expression for the State of a parked row.
var stateOf = fmt.Sprintf(`CASE p.state WHEN 'quarantined' THEN %d WHEN 'discarded' THEN %d WHEN 'resolved' THEN %d ELSE %d END`,
	Quarantined, Discarded, Handled, Waiting)

func (c *consumer) parked(ctx context.Context) (all []Parked, err error) {
	err = c.rows(ctx, func(scan func(dest ...any) error) error {
		var p Parked
		var oldest int64
		err := scan(&p.State, &p.N, &oldest)
		p.Oldest = fromMillis(oldest)
		all = append(all, p)
		return err
	}, c.dialect.SQL(`
		SELECT `+stateOf+` AS s, COUNT(*), {millis MIN(p.created_at)} FROM {parked} AS p
		WHERE p.consumer = $1 AND p.topic {among $2 text} AND p.state <> 'resolved' GROUP BY s ORDER BY s`), c.name, c.topics)
	return all, err
}

// scan reads the inbox and the parked messages that are not in it.
func (c *consumer) scan(ctx context.Context, w window, spans []span, details bool, each func(*record) error) error {
	var q query
	name, topics := q.arg(c.name), q.arg(c.topics)
	in := func(column string) string {
		return `CASE WHEN ` + column + ` >= ` + q.millis(w.from) + ` AND ` + column + ` < ` + q.millis(w.until) + ` THEN 1 ELSE 0 END`
	}
	since := func(column string) string {
		if details {
			return ""
		}
		return ` AND ` + column + ` >= ` + q.millis(w.from.Add(-early))
	}
	inbox, parked := in(`processed_at`), `MAX(`+in(`p.created_at`)+`)`
	if details {
		inbox += `, {millis processed_at}, ` + strconv.Itoa(int(Handled))
		parked += `, {millis MIN(p.created_at)}, MAX(` + stateOf + `)`
	}
	text := `
		SELECT message_id, ` + inbox + ` FROM {inbox} WHERE consumer = ` + name + since(`processed_at`) + q.spans(`message_id`, spans) + `
		UNION ALL
		SELECT p.message_id, ` + parked + ` FROM {parked} AS p
		WHERE p.consumer = ` + name + ` AND p.topic {among ` + topics + ` text} AND p.message_id <> ''` +
		since(`p.created_at`) + q.spans(`p.message_id`, spans) + `
		  AND NOT EXISTS (SELECT 1 FROM {inbox} AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer)
		GROUP BY p.message_id`
	var (
		r   record
		raw sql.RawBytes
		n   int
	)
	return c.rows(ctx, func(scan func(dest ...any) error) error {
		var err error
		if details {
			err = scan(&raw, &n, &r.firstAt, &r.state)
		} else {
			err = scan(&raw, &n)
		}
		if err != nil {
			return err
		}
		r.id, r.in = raw, n == 1
		return each(&r)
	}, c.dialect.SQL(text), q.args...)
}
