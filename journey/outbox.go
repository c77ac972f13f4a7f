package journey

import (
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// windows calls the function read once for each part of the outbox, with the SQL
// conditions that select the part.
func (s *search) windows(read func(c *operate.Conditions) error) error {
	if !s.tables["outbox"] {
		return nil
	}
	after := int64(0)
	for looked := 0; ; looked += outboxrow.WindowRows {
		if looked >= s.query.OutboxRows {
			s.notef("Only the oldest %d rows of the outbox were looked at. Raise the number of rows to look at the others.", looked)
			return nil
		}
		last, err := outboxrow.Window(s.ctx, s.tx, s.dialect, after)
		if err != nil {
			return err
		}
		c := &operate.Conditions{}
		c.Add(`o.position > %s`, after)
		if last > 0 {
			c.Add(`o.position <= %s`, last)
		}
		if err := read(c); err != nil || last == 0 {
			return err
		}
		after = last
	}
}

// outboxRow is a row of the outbox.
type outboxRow struct {
	id, topic, state, lastError, blockReason string
	position, created, blocker               int64
	due, failing, blockedAt                  sql.NullInt64
	attempts                                 int
	unknown                                  bool
	metadata                                 []byte
}

func (s *search) outboxRows(ids []string) error {
	return s.windows(func(c *operate.Conditions) error {
		c.Add(`o.message_id IN {list %s text}`, s.dialect.Strings(ids)) // PostgreSQL hashes this list
		return dialect.EachRow(s.ctx, s.tx, func(scan func(dest ...any) error) error {
			var r outboxRow
			err := scan(&r.id, &r.topic, &r.state, &r.lastError, &r.position, &r.created, &r.due, &r.failing, &r.attempts, &r.unknown,
				&r.metadata, &r.blocker, &r.blockReason, &r.blockedAt)
			if err == nil {
				s.outboxRow(&r)
			}
			return err
		}, s.dialect.SQL(`
			SELECT o.message_id, o.topic, `+outboxrow.State+`, COALESCE(o.last_error, ''), o.position, {millis o.created_at},
			       {millis o.due_at}, {millis o.failing_since}, o.attempts, o.unknown, CAST(o.metadata AS text),
			       COALESCE(b.position, 0), COALESCE(b.reason, ''), {millis b.blocked_at}
			FROM {outbox} AS o LEFT JOIN {blocked_keys} AS b ON b.ordering_key = o.ordering_key AND b.position <> o.position
			`+c.Where()+` ORDER BY o.position`), c.Args...)
	})
}

// outboxRow adds the events of a row.
func (s *search) outboxRow(r *outboxRow) {
	m := s.byID[r.id]
	m.labelsFrom(r.metadata)
	m.describe(r.topic, "", "", "", "", "")
	m.add(Event{At: fromMillis(r.created), Place: Outbox, Row: r.position, Topic: r.topic, What: "written"})
	if r.failing.Valid {
		m.add(Event{
			At: fromMillis(r.failing.Int64), Place: Outbox, Row: r.position, Topic: r.topic, What: "failed first",
			Detail: "the last error is shown", Attempts: r.attempts, Error: r.lastError,
		})
	}
	where := "It waits in the outbox, and a forwarder sends it as soon as it can, or is sending it."
	switch r.state {
	case "backing_off":
		where = fmt.Sprintf("It waits in the outbox: the broker did not accept it, and it is tried again at %s.", clock(r.due.Int64))
		m.add(Event{At: fromMillis(r.due.Int64), Place: Outbox, Row: r.position, Topic: r.topic, What: "due", Detail: "tried again"})
	case "delayed":
		where = fmt.Sprintf("It waits in the outbox until %s, because its producer delayed it.", clock(r.due.Int64))
		m.add(Event{At: fromMillis(r.due.Int64), Place: Outbox, Row: r.position, Topic: r.topic, What: "due", Detail: "sent for the first time"})
	case "blocked":
		where = fmt.Sprintf("It waits in the outbox behind the message at position %d, which blocks its ordering key (%s).",
			r.blocker, r.blockReason)
		m.add(Event{
			At: fromMillis(r.blockedAt.Int64), Place: Outbox, Row: r.position, Topic: r.topic, What: "blocked",
			Detail: fmt.Sprintf("its ordering key is blocked by position %d", r.blocker), Reason: r.blockReason,
		})
	}
	m.say(where)
	if r.unknown {
		m.say("An earlier attempt may have sent it all the same.")
	}
}
