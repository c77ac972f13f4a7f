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

// consumer is one consumer of a Receiver.
type consumer struct {
	*Receiver

	name   string
	topics string // topics in the form of dialect.Strings
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

// check returns an error if the consumer is unknown. It also returns an error if the
// consumer was subscribed to other topics after the time in the parameter from, because
// its inbox then contains messages of these topics.
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

// since returns the beginning of the period for which the inbox is complete: it
// contains all messages that the consumer has handled since then. This is the latest of
// three times, plus the constant margin, rounded up to a whole minute: the beginning of
// the retention, the consumer's registration, and the time of the oldest row of the
// inbox. The oldest row shows whether the retention is shorter than configured. Two
// kinds of rows are kept longer, and do not count as the oldest row: rows of parked
// messages, and business keys.
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
