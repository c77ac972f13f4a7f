package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// oldest returns the time of the oldest row of the sent log, or the zero time if the
// log is empty. Because IDs ascend with sent_at, the oldest row is the row with the
// lowest ID.
func (s *Sender) oldest(ctx context.Context) (time.Time, error) {
	var ms int64
	err := s.one(ctx, s.dialect.SQL(`SELECT {millis sent_at} FROM {outbox_sent} ORDER BY id LIMIT 1`), nil, &ms)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return fromMillis(ms), err
}

// scan reads the sent log in the order of the message ids. So all rows of a message
// that was sent more than once come one after another.
func (s *Sender) scan(ctx context.Context, w window, spans []span, details bool, each func(*record) error) error {
	var q query
	id := `message_id`
	if !s.dialect.SQLite() {
		id += ` COLLATE "C"`
	}
	columns := `CASE WHEN sent_at >= ` + q.millis(w.from) + ` AND sent_at < ` + q.millis(w.until) + ` THEN 1 ELSE 0 END`
	where := `topic {among ` + q.arg(s.dialect.Strings(s.config.Topics)) + ` text}` + q.spans(id, spans)
	if details {
		columns += `, {millis sent_at}, id, topic`
	} else {
		where += ` AND sent_at >= ` + q.millis(w.from.Add(-early))
	}
	var (
		last, next record
		raw        sql.RawBytes
		in         int
		spare      []byte // buffer of the id before the last one, to be reused
		some       bool
	)
	err := s.rows(ctx, func(scan func(dest ...any) error) error {
		next = record{id: spare}
		var err error
		if details {
			err = scan(&raw, &in, &next.firstAt, &next.log, &next.topic)
			next.lastAt = next.firstAt
		} else {
			err = scan(&raw, &in)
		}
		if err != nil {
			return err
		}
		next.in = in == 1
		if some && string(raw) == string(last.id) {
			last.merge(&next)
			return nil
		}
		if some {
			err = each(&last)
		}
		next.id = append(next.id[:0], raw...)
		spare, last, some = last.id, next, true
		return err
	}, s.dialect.SQL(`SELECT message_id, `+columns+` FROM {outbox_sent} WHERE `+where+` ORDER BY `+id), q.args...)
	if err == nil && some {
		err = each(&last)
	}
	return err
}

// merge updates r with the values of another row that has the same id.
func (r *record) merge(other *record) {
	r.in = r.in || other.in
	r.firstAt, r.lastAt = min(r.firstAt, other.firstAt), max(r.lastAt, other.lastAt)
	if other.log > r.log {
		r.log, r.topic = other.log, other.topic
	}
}
