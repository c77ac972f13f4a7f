package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
)

// stateOf is the SQL expression for the State of a parked row.
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

// scan reads the inbox, and the parked messages that are not in the inbox.
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
