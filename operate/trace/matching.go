package trace

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate/internal/rows"
)

const (
	// Only dead letters and the quarantine have an index on the tenant, so few rows are searched.
	latestSent   = 50_000
	latestParked = 20_000

	// fewRows limits the rows that Find sorts by time: those of an aggregate, or caused by
	// messages. Of an aggregate with more, Find reads the rows in the order of their ids, and only
	// the latest of the sent log. More that were caused are left out.
	fewRows = 5_000

	// waitingRows limits the rows for an aggregate or a cause of each kind that its index leaves
	// out: waiting without and with a crash count, and held.
	waitingRows = 10_000
)

type selection struct {
	tenant, aggregateType, aggregateID string
	causes                             []string
}

// columns adds the conditions of sel for a table with columns for them. stored returns a value as
// the table contains it.
func (s *search) columns(c *rows.Conditions, sel selection, stored func(string) string) {
	c.AddText("tenant", stored(sel.tenant))
	c.AddText("aggregate_type || ''", stored(sel.aggregateType)) // its index would find more rows
	c.AddText("aggregate_id", stored(sel.aggregateID))
	if sel.causes != nil {
		var causes []string
		for _, id := range sel.causes {
			causes = append(causes, stored(id))
		}
		c.Add(`causation_id {among %s text}`, s.dialect.Strings(causes))
	}
	// PostgreSQL uses the partial indexes only if the query contains their conditions.
	if sel.tenant != "" {
		c.Texts = append(c.Texts, `tenant <> ''`)
	}
	if sel.aggregateID != "" {
		c.Texts = append(c.Texts, `aggregate_id <> ''`)
	}
	if sel.causes != nil {
		c.Texts = append(c.Texts, `causation_id <> ''`)
	}
}

func parkedLabel(value string) string { return parkedrows.Clean(value, parkedrows.MaxName) }

type foundMessage struct {
	id, causedBy string
	at           int64 // time in milliseconds
}

// matching returns the latest messages that match sel in any table, at most Query.Limit+1 from
// each, to notice if there are more.
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
	return s.limited(all), nil
}

func (s *search) inTables(sel selection) (all []foundMessage, err error) {
	if sel.tenant != "" {
		s.notef("For a tenant, only the latest %d rows of the sent log and the latest %d parked messages besides the quarantine were looked at.",
			latestSent, latestParked)
	}
	for _, t := range []struct {
		name   string
		stored func(string) string
		parts  func(sel selection) ([]part, error)
	}{
		{"outbox_dead", outboxrow.Label, s.deadParts}, {"outbox_sent", outboxrow.Label, s.sentParts}, {"parked", parkedLabel, s.parkedParts},
	} {
		if !s.tables[t.name] {
			continue
		}
		parts, err := t.parts(sel)
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			c := &rows.Conditions{}
			s.columns(c, sel, t.stored)
			if part.where != "" {
				c.Texts = append(c.Texts, part.where)
			}
			from, order := `{`+t.name+`} `+c.Where(), `id DESC`
			if part.few { // no index has this order, so the index of the conditions is used
				from = `(SELECT * FROM ` + from + ` LIMIT ` + c.Arg(max(fewRows, s.query.Limit+1)) + `) AS few`
				order = `created_at DESC, id DESC`
			}
			err := s.collect(&all, `SELECT message_id, causation_id, {millis created_at} FROM `+from+
				` ORDER BY `+order+` LIMIT `+c.Arg(s.query.Limit+1), c.Args)
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

type part struct {
	where string // additional SQL condition, or ""
	few   bool   // at most fewRows rows are read, and sorted
}

func latest(table string, rows int) part {
	return part{where: fmt.Sprintf(`id > (SELECT COALESCE(MAX(id), 0) FROM {%s}) - %d`, table, rows)}
}

func (s *search) deadParts(sel selection) ([]part, error) {
	if sel.causes != nil {
		return s.causedParts("outbox_dead", sel, outboxrow.Label, "")
	}
	return []part{{}}, nil
}

func (s *search) sentParts(sel selection) ([]part, error) {
	switch {
	case sel.tenant != "":
		return []part{latest("outbox_sent", latestSent)}, nil
	case sel.causes != nil:
		return s.causedParts("outbox_sent", sel, outboxrow.Label, "")
	}
	few, err := s.few("outbox_sent", sel, outboxrow.Label, "")
	if few {
		return []part{{few: true}}, err
	}
	s.notef("The aggregate has more than %d rows in the sent log: only the latest %d rows of the log were looked at.",
		fewRows, latestSent)
	return []part{latest("outbox_sent", latestSent)}, err
}

func (s *search) causedParts(table string, sel selection, stored func(string) string, where string) ([]part, error) {
	few, err := s.few(table, sel, stored, where)
	if err == nil && !few {
		s.notef("Messages caused more than %d rows of %s%s: some of these rows were not looked at.", fewRows, s.dialect.Config().Prefix, table)
	}
	return []part{{where: where, few: true}}, err
}

func (s *search) few(table string, sel selection, stored func(string) string, where string) (few bool, err error) {
	c := &rows.Conditions{}
	s.columns(c, sel, stored)
	if where != "" {
		c.Texts = append(c.Texts, where)
	}
	n := 0
	err = s.tx.QueryRowContext(s.ctx, s.dialect.SQL(`SELECT COUNT(*) FROM (SELECT 1 AS one FROM {`+table+`} `+c.Where()+
		` LIMIT `+c.Arg(fewRows+1)+`) AS found`), c.Args...).Scan(&n)
	return n <= fewRows, err
}

func (s *search) parkedParts(sel selection) ([]part, error) {
	if sel.tenant != "" {
		return []part{{where: `state = '` + parkedrows.Quarantined + `'`}, latest("parked", latestParked)}, nil
	}
	if sel.causes != nil {
		return s.causedParts("parked", sel, parkedLabel, parkedrows.AtRest)
	}
	few, err := s.few("parked", sel, parkedLabel, parkedrows.AtRest)
	return []part{{where: parkedrows.AtRest, few: few}}, err
}

func (s *search) amongWaiting(sel selection) (all []foundMessage, err error) {
	if sel.tenant != "" || !s.tables["parked"] {
		return nil, nil
	}
	c := &rows.Conditions{}
	s.columns(c, sel, parkedLabel)
	return s.waiting(c)
}

// waiting reads in the order of the index, at most waitingRows of each kind.
func (s *search) waiting(c *rows.Conditions) (all []foundMessage, err error) {
	for _, kind := range []string{
		`state = 'waiting' AND crashes = 0 ORDER BY consumer, topic, priority_class, tenant, due_at`,
		`state = 'waiting' AND crashes > 0 ORDER BY consumer, topic, due_at`,
		`state = 'held' ORDER BY consumer, topic, ordering_key, id`,
	} {
		rows := `FROM {parked} WHERE ` + kind
		err := s.collect(&all, fmt.Sprintf(`SELECT message_id, causation_id, {millis created_at}
			FROM (SELECT message_id, causation_id, created_at, aggregate_type, aggregate_id %s LIMIT %d) AS waiting %s`,
			rows, waitingRows, c.Where()), c.Args)
		if err != nil {
			return nil, err
		}
		var id int64
		err = s.tx.QueryRowContext(s.ctx, s.dialect.SQL(`SELECT id `+rows+` LIMIT 1 OFFSET $1`), waitingRows).Scan(&id)
		switch {
		case err == nil:
			s.notef("More than %d parked messages wait: only as many of them were looked at. Search by message id to be sure.", waitingRows)
		case !errors.Is(err, sql.ErrNoRows):
			return nil, err
		}
	}
	return all, nil
}

func (s *search) collect(to *[]foundMessage, query string, args []any) error {
	return dialect.EachRow(s.ctx, s.tx, func(scan func(dest ...any) error) error {
		var f foundMessage
		err := scan(&f.id, &f.causedBy, &f.at)
		*to = append(*to, f)
		return err
	}, s.dialect.SQL(query), args...)
}

// The outbox has no columns for the tenant, the aggregate and the cause, so the metadata is read.
func (s *search) inOutbox(sel selection) (all []foundMessage, err error) {
	field := func(key string) string { return outboxrow.MetadataField(s.dialect, key) }
	err = s.windows(func(c *rows.Conditions) error {
		s.prefilter(c, cmp.Or(sel.tenant, sel.aggregateID))
		c.AddText(field(meta.TenantID), sel.tenant)
		c.AddText(field(meta.AggregateType), sel.aggregateType)
		c.AddText(field(meta.AggregateID), sel.aggregateID)
		return s.collect(&all, `SELECT o.message_id, COALESCE(`+field(meta.CausationID)+`, ''), {millis o.created_at}
			FROM {outbox} AS o `+c.Where()+` ORDER BY o.position DESC LIMIT `+c.Arg(s.query.Limit+1), c.Args)
	})
	return all, err
}

// prefilter adds the condition that the text of the metadata contains a value, unless JSON may
// escape it, so that only those rows are decoded. PostgreSQL's strpos takes three times as long as
// LIKE, and decoding ten times.
func (s *search) prefilter(c *rows.Conditions, value string) {
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

// scannedCauses finds the messages that were caused by sel.causes in tables without an index for
// this, the outbox and the waiting parked messages, which its first call reads.
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
	err := s.windows(func(c *rows.Conditions) error {
		return s.collect(&caused, `SELECT o.message_id, COALESCE(`+field+`, ''), {millis o.created_at} FROM {outbox} AS o `+c.Where(), c.Args)
	})
	if err == nil && s.tables["parked"] {
		var waiting []foundMessage
		waiting, err = s.waiting(&rows.Conditions{Texts: []string{`causation_id <> ''`}})
		caused = append(caused, waiting...)
	}
	for _, f := range caused {
		s.scanned[f.causedBy] = append(s.scanned[f.causedBy], f)
	}
	return err
}

// limited removes duplicates from all, the latest first, and returns the latest Query.Limit in the
// order of their times. It notes what it leaves out.
func (s *search) limited(all []foundMessage) (found []foundMessage) {
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
