package journey

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parked"
)

const (
	// tenantRows is how many of the latest rows of a table are looked at for a tenant,
	// for which there is no index.
	tenantRows = 100_000

	// waitingRows is how many waiting or held rows are looked at for an aggregate or a
	// cause: their indexes do not contain them.
	waitingRows = 20_000
)

// selection says which messages to look for: those of a tenant or an aggregate, or
// those that other messages caused.
type selection struct {
	tenant, aggregateType, aggregateID string
	causes                             []string
}

// columns adds the conditions of rows of a table that has columns for the labels.
// stored returns a value as the table has it.
func (s *search) columns(c *operate.Conditions, sel selection, stored func(string) string) {
	c.AddText("tenant", stored(sel.tenant))
	c.AddText("aggregate_type", stored(sel.aggregateType))
	c.AddText("aggregate_id", stored(sel.aggregateID))
	if sel.causes != nil {
		var causes []string
		for _, id := range sel.causes {
			causes = append(causes, stored(id))
		}
		c.Add(`causation_id {among %s text}`, s.dialect.Strings(causes))
	}
	// The conditions of the indexes.
	if sel.aggregateID != "" {
		c.Texts = append(c.Texts, `aggregate_id <> ''`)
	}
	if sel.causes != nil {
		c.Texts = append(c.Texts, `causation_id <> ''`)
	}
}

func parkedLabel(value string) string { return parked.Clean(value, parked.MaxName) }

type foundMessage struct {
	id, causedBy string
	at           int64 // in milliseconds
}

// matching returns the latest messages that match in any table, in the order of their
// times. There is at most one more than Query.Limit from each table.
func (s *search) matching(sel selection) ([]foundMessage, error) {
	var all []foundMessage
	parts := []func(selection) ([]foundMessage, error){s.inTables, s.amongWaiting, s.inOutbox}
	if sel.causes != nil {
		parts = []func(selection) ([]foundMessage, error){s.inTables, s.scannedCauses}
	}
	for _, part := range parts {
		found, err := part(sel)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b foundMessage) int { return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(b.id, a.id)) })
	return s.latest(all), nil
}

// inTables looks for rows that an index finds or, for a tenant, among the latest rows.
func (s *search) inTables(sel selection) (all []foundMessage, err error) {
	for _, t := range []struct {
		name, indexed string
		stored        func(string) string
	}{
		{"outbox_dead", "", outboxrow.Label}, {"outbox_sent", "", outboxrow.Label}, {"parked", parked.AtRest, parkedLabel},
	} {
		if !s.tables[t.name] {
			continue
		}
		c := &operate.Conditions{}
		s.columns(c, sel, t.stored)
		if sel.tenant != "" {
			c.Texts = append(c.Texts, fmt.Sprintf(`id > (SELECT COALESCE(MAX(id), 0) FROM {%s}) - %d`, t.name, tenantRows))
			s.notef("For a tenant, only the latest %d rows of each table were looked at.", tenantRows)
		} else if t.indexed != "" {
			c.Texts = append(c.Texts, t.indexed)
		}
		found, err := s.latestRows(t.name, c)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// amongWaiting looks for parked messages that wait and are not in the indexes.
func (s *search) amongWaiting(sel selection) ([]foundMessage, error) {
	if sel.tenant != "" || !s.tables["parked"] {
		return nil, nil
	}
	if err := s.readWaiting(); err != nil {
		return nil, err
	}
	c := &operate.Conditions{}
	s.columns(c, sel, parkedLabel)
	c.Add(`id {among %s bigint}`, s.dialect.List(s.waiting))
	return s.latestRows("parked", c)
}

// latestRows returns the latest rows of a table. They are not ordered by id alone,
// because PostgreSQL could then read the whole table in that order.
func (s *search) latestRows(table string, c *operate.Conditions) (all []foundMessage, err error) {
	err = s.collect(&all, `SELECT message_id, causation_id, {millis created_at} FROM {`+table+`} `+c.Where()+
		` ORDER BY created_at DESC, id DESC LIMIT `+c.Arg(s.query.Limit+1), c.Args)
	return all, err
}

func (s *search) collect(to *[]foundMessage, query string, args []any) error {
	return dialect.EachRow(s.ctx, s.tx, func(scan func(dest ...any) error) error {
		var f foundMessage
		err := scan(&f.id, &f.causedBy, &f.at)
		*to = append(*to, f)
		return err
	}, s.dialect.SQL(query), args...)
}

// inOutbox looks for rows of the outbox, which have their labels in the metadata.
func (s *search) inOutbox(sel selection) (all []foundMessage, err error) {
	field := func(key string) string { return outboxrow.MetadataField(s.dialect, key) }
	err = s.windows(func(c *operate.Conditions) error {
		s.prefilter(c, cmp.Or(sel.tenant, sel.aggregateID))
		c.AddText(field(meta.TenantID), sel.tenant)
		c.AddText(field(meta.AggregateType), sel.aggregateType)
		c.AddText(field(meta.AggregateID), sel.aggregateID)
		return s.collect(&all, `SELECT o.message_id, COALESCE(`+field(meta.CausationID)+`, ''), {millis o.created_at}
			FROM {outbox} AS o `+c.Where()+` ORDER BY o.position DESC LIMIT `+c.Arg(s.query.Limit+1), c.Args)
	})
	return all, err
}

// prefilter adds a condition that the text of the metadata contains a value. To read
// JSON takes ten times as long, and strpos three times as long as LIKE. Values with
// characters that can have escapes in JSON get no such condition.
func (s *search) prefilter(c *operate.Conditions, value string) {
	const plain = "0123456789-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.: "
	if strings.Trim(value, plain) != "" {
		return
	}
	if s.dialect.SQLite() {
		c.Add(`instr(o.metadata, %s) > 0`, value)
	} else {
		c.Add(`CAST(o.metadata AS text) LIKE %s`, "%"+value+"%") // an underscore matches every character
	}
}

// scannedCauses looks for messages that no index finds by their causes: in the outbox,
// and among parked messages that wait. It reads them once for all levels.
func (s *search) scannedCauses(sel selection) (all []foundMessage, err error) {
	if s.scanned == nil {
		if err := s.scanCauses(); err != nil {
			return nil, err
		}
	}
	for _, id := range sel.causes {
		all = append(all, s.scanned[id]...)
	}
	return all, nil
}

func (s *search) scanCauses() error {
	s.scanned = map[string][]foundMessage{}
	var caused []foundMessage
	field := outboxrow.MetadataField(s.dialect, meta.CausationID)
	err := s.windows(func(c *operate.Conditions) error {
		s.prefilter(c, meta.CausationID)
		return s.collect(&caused, `SELECT o.message_id, COALESCE(`+field+`, ''), {millis o.created_at} FROM {outbox} AS o `+c.Where(), c.Args)
	})
	if err == nil && s.tables["parked"] {
		if err = s.readWaiting(); err == nil {
			err = s.collect(&caused, `SELECT message_id, causation_id, {millis created_at} FROM {parked}
				WHERE id {among $1 bigint} AND causation_id <> ''`, []any{s.dialect.List(s.waiting)})
		}
	}
	for _, f := range caused {
		s.scanned[f.causedBy] = append(s.scanned[f.causedBy], f)
	}
	return err
}

// latest returns the first messages, which are the latest, in ascending order and each
// once. One more than the limit shows that there are more.
func (s *search) latest(all []foundMessage) (found []foundMessage) {
	seen := map[string]bool{}
	for _, f := range all {
		if !seen[f.id] && len(found) <= s.query.Limit {
			found, seen[f.id] = append(found, f), true
		}
	}
	if len(found) > s.query.Limit {
		s.notef("More messages match than the limit of %d: the others are left out.", s.query.Limit)
		found = found[:s.query.Limit]
	}
	slices.Reverse(found)
	return found
}

// readWaiting reads the IDs of the waiting and held rows, by their indexes.
func (s *search) readWaiting() error {
	if s.waiting != nil {
		return nil
	}
	s.waiting = []int64{}
	for _, from := range []string{
		`state = 'waiting' AND crashes = 0 ORDER BY consumer, topic, priority_class, tenant, due_at`,
		`state = 'waiting' AND crashes > 0 ORDER BY consumer, topic, due_at`,
		`state = 'held' ORDER BY consumer, topic, ordering_key, id`,
	} {
		n := 0
		err := dialect.EachRow(s.ctx, s.tx, func(scan func(dest ...any) error) error {
			var id int64
			err := scan(&id)
			s.waiting = append(s.waiting, id)
			n++
			return err
		}, s.dialect.SQL(`SELECT id FROM {parked} WHERE `+from+` LIMIT $1`), waitingRows)
		if err != nil {
			return err
		}
		if n == waitingRows {
			s.notef("More than %d parked messages wait: only as many of them were looked at. Search by message id to be sure.", waitingRows)
		}
	}
	return nil
}
