package trace

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate/internal/rows"
)

// If a table is missing, Answer.Notes says that this database does not know the facts in note.
var sides = []struct{ table, note string }{
	{"outbox", "what waits to be sent"},
	{"blocked_keys", "which ordering keys are blocked"},
	{"outbox_dead", "what the forwarder gave up on"},
	{"outbox_sent", "what was sent"},
	{"parked", "what waits for a consumer or is in quarantine"},
	{"inbox", "what was handled"},
	{"consumers", "which consumers there are"},
	{"audit", "who changed what"},
}

// A database may contain only the tables of the producer, or of the consumers.
func (s *search) existing() error {
	s.tables = map[string]bool{}
	for _, side := range sides {
		config := s.dialect.Config()
		query := fmt.Sprintf(`SELECT to_regclass('%s') IS NOT NULL`, config.Table(side.table))
		if s.dialect.SQLite() {
			query = fmt.Sprintf(`SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '%s%s')`, config.Prefix, side.table)
		}
		var exists bool
		if err := s.tx.QueryRowContext(s.ctx, query).Scan(&exists); err != nil {
			return err
		}
		s.tables[side.table] = exists
		if !exists {
			s.notef("This database has no table %s%s: it does not know %s.", config.Prefix, side.table, side.note)
		}
	}
	s.tables["outbox"] = s.tables["outbox"] && s.tables["blocked_keys"]
	return nil
}

// The queries sort by id + 0, because PostgreSQL might otherwise read the whole table in the order
// of the primary key. $1 is the list of the message ids.
func (s *search) each(table, query string, ids []string, row func(scan func(dest ...any) error) error) error {
	if !s.tables[table] {
		return nil
	}
	return dialect.EachRow(s.ctx, s.tx, row, s.dialect.SQL(query), s.dialect.Strings(ids))
}

func (s *search) dead(ids []string) error {
	return s.each("outbox_dead", `SELECT id, message_id, topic, `+outboxrow.LabelColumns+`, {millis created_at}, {millis died_at},
			attempts, last_error, reason, unknown
		FROM {outbox_dead} WHERE message_id {among $1 text} ORDER BY id + 0`, ids, func(scan func(dest ...any) error) error {
		var (
			id, topic     string
			l             [5]string
			created, died int64
			unknown       bool
			e             = Event{Place: DeadLetters, What: "given up"}
		)
		err := scan(&e.Row, &id, &topic, &l[0], &l[1], &l[2], &l[3], &l[4], &created, &died, &e.Attempts, &e.Error, &e.Reason, &unknown)
		if err != nil {
			return err
		}
		m := s.byID[id]
		m.describe(topic, l[0], l[1], l[2], l[3], l[4])
		m.add(Event{At: fromMillis(created), Place: DeadLetters, Row: e.Row, Topic: topic, What: "written", Detail: "to the outbox"})
		e.At, e.Topic = fromMillis(died), topic
		m.say(fmt.Sprintf("The forwarder gave up on it (%s): it is dead letter %d.", e.Reason, e.Row))
		if unknown {
			e.Detail = "it may have been sent all the same"
			m.say("It may have been sent all the same.")
		}
		m.add(e)
		return nil
	})
}

func (s *search) sent(ids []string) error {
	return s.each("outbox_sent", `SELECT id, message_id, topic, `+outboxrow.LabelColumns+`, {millis created_at}, {millis sent_at}
		FROM {outbox_sent} WHERE message_id {among $1 text} ORDER BY id + 0`, ids, func(scan func(dest ...any) error) error {
		var (
			id, topic     string
			l             [5]string
			created, sent int64
			e             = Event{Place: SentLog, What: "sent", Detail: "the broker confirmed it"}
		)
		if err := scan(&e.Row, &id, &topic, &l[0], &l[1], &l[2], &l[3], &l[4], &created, &sent); err != nil {
			return err
		}
		m := s.byID[id]
		m.describe(topic, l[0], l[1], l[2], l[3], l[4])
		m.add(Event{At: fromMillis(created), Place: SentLog, Row: e.Row, Topic: topic, What: "written", Detail: "to the outbox"})
		e.At, e.Topic = fromMillis(sent), topic
		m.add(e)
		m.say(fmt.Sprintf("The broker confirmed it at %s.", clock(sent)))
		return nil
	})
}

type parkedRow struct {
	row                                                  int64
	id, consumer, topic, state, owner, early             string
	tenant, aggregateType, aggregateID, event, causation string
	reason, text                                         string
	attempts, crashes, replays                           int
	claimed                                              bool
	due, created                                         int64
	first, last, finished, earlySince                    sql.NullInt64
}

func (s *search) parked(ids []string) error {
	stored, names := storedNames(ids)
	return s.each("parked", `SELECT id, message_id, consumer, topic, state, COALESCE(owner, ''), token IS NOT NULL, COALESCE(early_of, ''),
			tenant, aggregate_type, aggregate_id, event_type, causation_id, reason, error, attempts, crashes, replays,
			{millis due_at}, {millis created_at}, {millis first_failed_at}, {millis last_failed_at}, {millis finished_at},
			{millis early_since}
		FROM {parked} WHERE message_id {among $1 text} AND message_id <> '' ORDER BY id + 0`, names, func(scan func(dest ...any) error) error {
		var r parkedRow
		err := scan(&r.row, &r.id, &r.consumer, &r.topic, &r.state, &r.owner, &r.claimed, &r.early,
			&r.tenant, &r.aggregateType, &r.aggregateID, &r.event, &r.causation, &r.reason, &r.text, &r.attempts, &r.crashes, &r.replays,
			&r.due, &r.created, &r.first, &r.last, &r.finished, &r.earlySince)
		if err == nil {
			s.byID[stored[r.id]].parkedRow(&r)
		}
		return err
	})
}

func (m *Message) parkedRow(r *parkedRow) {
	m.describe(r.topic, r.tenant, r.aggregateType, r.aggregateID, r.event, r.causation)
	event := func(at int64, what, detail string) Event {
		return Event{At: fromMillis(at), Place: Parked, Row: r.row, Consumer: r.consumer, Topic: r.topic, What: what, Detail: detail}
	}
	m.add(event(r.created, "stored", "in the consumer's database"))
	if r.first.Valid && r.first != r.last {
		m.add(event(r.first.Int64, "failed first", ""))
	}
	if r.last.Valid {
		e := event(r.last.Int64, "failed", "")
		if r.state == parkedrows.Quarantined || r.state == parkedrows.Discarded {
			e.What = "quarantined"
		}
		e.Attempts, e.Reason, e.Error = r.attempts, r.reason, r.text
		if r.crashes > 0 {
			e.Detail = fmt.Sprintf("crash count %d", r.crashes)
		}
		m.add(e)
	}
	if r.earlySince.Valid {
		m.add(event(r.earlySince.Int64, "early", "an earlier version of "+r.early+" is missing"))
	}
	state, since := State(r.state), r.last.Int64
	switch r.state {
	case parkedrows.Waiting:
		since = max(r.created, r.last.Int64)
		switch {
		case r.claimed:
			m.add(event(r.due, "due", fmt.Sprintf("claimed by %s: due again then if the claim is not ended", cmp.Or(r.owner, "a process"))))
		case r.replays > 0 && r.attempts == 0:
			m.add(event(r.due, "due", "after a replay"))
		default:
			m.add(event(r.due, "due", ""))
		}
	case parkedrows.Held:
		since = r.created
	case parkedrows.Resolved, parkedrows.Discarded:
		since = r.finished.Int64
		if r.state == parkedrows.Resolved {
			state = Handled
		}
		m.add(event(since, string(state), ""))
	}
	m.setState(r.consumer, r.topic, state, fromMillis(since))
}

// replaced says which message replaces an original, and which one an edited message replaces.
func (s *search) replaced(ids []string) error {
	stored, names := storedNames(ids)
	query := `SELECT old.message_id, edited.message_id, edited.consumer, edited.id
		FROM {parked} AS edited JOIN {parked} AS old ON old.id = edited.edited_from
		WHERE edited.edited_from IS NOT NULL AND %s.message_id {among $1 text} AND old.message_id <> '' ORDER BY edited.id + 0`
	type pair struct {
		from, to, consumer string
		row                int64
	}
	tell := func(side string, say func(p pair)) error {
		return s.each("parked", fmt.Sprintf(query, side), names, func(scan func(dest ...any) error) error {
			var p pair
			err := scan(&p.from, &p.to, &p.consumer, &p.row)
			if err == nil {
				say(p)
			}
			return err
		})
	}
	return errors.Join(
		tell("old", func(p pair) {
			s.byID[stored[p.from]].say(fmt.Sprintf("Edited for consumer %q: message %s (entry %d) replaces it.", p.consumer, p.to, p.row))
		}),
		tell("edited", func(p pair) {
			s.byID[stored[p.to]].say(fmt.Sprintf("It replaces message %s for consumer %q, which was edited.", p.from, p.consumer))
		}))
}

// storedNames returns the ids as the table of parked messages contains them, and a map back.
func storedNames(ids []string) (stored map[string]string, names []string) {
	stored = map[string]string{}
	for _, id := range ids {
		name := parkedrows.Clean(id, parkedrows.MaxName)
		stored[name], names = id, append(names, name)
	}
	return stored, names
}

func (s *search) inbox(ids []string) error {
	return s.each("inbox", `SELECT message_id, consumer, {millis processed_at} FROM {inbox}
		WHERE message_id {among $1 text} ORDER BY message_id, consumer`, ids, func(scan func(dest ...any) error) error {
		var (
			id, consumer string
			at           int64
		)
		if err := scan(&id, &consumer, &at); err != nil {
			return err
		}
		m := s.byID[id]
		e := Event{At: fromMillis(at), Place: Inbox, Consumer: consumer, What: "handled", Detail: "its transaction was committed"}
		if m.discardedAt(consumer, e.At) {
			e.What, e.Detail = "entered", "by the discard, so that no copy runs"
		} else {
			m.setState(consumer, "", Handled, e.At)
		}
		m.add(e)
		return nil
	})
}

// discardedAt reports whether an operator's discard has written the row of the inbox. In SQLite
// each statement of a transaction has its own time, so the times may differ a little.
func (m *Message) discardedAt(consumer string, at time.Time) bool {
	return slices.ContainsFunc(m.Consumers, func(c Consumer) bool {
		return c.Name == consumer && c.State == Discarded && at.Sub(c.Since).Abs() < time.Second
	})
}

func (s *search) audit(ids []string) error {
	return s.each("audit", `SELECT id, message_id, {millis at}, actor, action, subject, consumer, why FROM {audit}
		WHERE message_id {among $1 text} AND message_id <> '' ORDER BY id + 0`, ids, func(scan func(dest ...any) error) error {
		var (
			id, subject string
			at          int64
			e           = Event{Place: Audit}
		)
		if err := scan(&e.Row, &id, &at, &e.Actor, &e.What, &subject, &e.Consumer, &e.Why); err != nil {
			return err
		}
		e.At, e.Detail = fromMillis(at), subject
		s.byID[id].add(e)
		return nil
	})
}

func (s *search) registered([]string) error {
	var topics []string
	for _, m := range s.messages {
		topics = append(topics, m.Topic)
	}
	return s.each("consumers", `SELECT topic, consumer FROM {consumers} WHERE topic {among $1 text} ORDER BY topic, consumer`, topics,
		func(scan func(dest ...any) error) error {
			var topic, consumer string
			if err := scan(&topic, &consumer); err != nil {
				return err
			}
			for _, m := range s.messages {
				if m.Topic == topic && !slices.ContainsFunc(m.Consumers, func(c Consumer) bool { return c.Name == consumer }) {
					m.setState(consumer, topic, Unseen, time.Time{})
				}
			}
			return nil
		})
}

func byName(a, b Consumer) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), a.Since.Compare(b.Since))
}

func (s *search) windows(read func(c *rows.Conditions) error) error {
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
		c := &rows.Conditions{}
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

type outboxRow struct {
	id, topic, state, lastError, blockReason string
	position, created, blocker               int64
	due, failing, blockedAt                  sql.NullInt64
	attempts                                 int
	unknown                                  bool
	metadata                                 []byte
}

func (s *search) outboxRows(ids []string) error {
	return s.windows(func(c *rows.Conditions) error {
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
